#include "ledger.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "failure.h"

uint32_t pending_add(struct pending *pending, uint32_t messages)
{
    if (!pending->messages)
        pending->messages = calloc(PENDING_MAX + 1, sizeof *pending->messages);
    if (!pending->messages)
        fail("there is no memory for the acks that are waited for");
    uint32_t number = pending->next % PENDING_MAX + 1;
    if (pending->messages[number])
        fail("there are more than %d unanswered publishes on one connection; use a smaller --in-flight", PENDING_MAX);
    pending->messages[number] = messages;
    pending->next = number;
    return number;
}

bool pending_has(const struct pending *pending, uint32_t number)
{
    return pending->messages && number <= PENDING_MAX && pending->messages[number];
}

uint32_t pending_take(struct pending *pending, uint32_t number)
{
    if (!pending_has(pending, number))
        fail("the broker acked publish %" PRIu32 ", which does not wait for an ack: a doubled or wrong ack", number);
    uint32_t messages = pending->messages[number];
    pending->messages[number] = 0;
    return messages;
}

static void make_room(struct seen *seen, size_t word)
{
    size_t count = seen->count ? seen->count : 1024;
    while (count <= word)
        count *= 2;
    seen->words = realloc(seen->words, count * sizeof *seen->words);
    if (!seen->words)
        fail("there is no memory to remember %zu messages", count * 64);
    memset(seen->words + seen->count, 0, (count - seen->count) * sizeof *seen->words);
    seen->count = count;
}

void seen_add(struct seen *seen, uint64_t number)
{
    size_t word = number / 64;
    uint64_t bit = (uint64_t)1 << (number % 64);
    if (word >= seen->count)
        make_room(seen, word);
    if (seen->words[word] & bit)
        fail("message %" PRIu64 " was delivered twice to one subscriber", number);
    seen->words[word] |= bit;
}

uint64_t seen_gap(const struct seen *seen, uint64_t end)
{
    for (uint64_t number = 0; number < end; number++)
        if (number / 64 >= seen->count || !(seen->words[number / 64] >> (number % 64) & 1))
            return number;
    return end;
}
