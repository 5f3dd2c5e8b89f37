#include "messages.h"

#include <stdio.h>
#include <stdlib.h>

#include "failure.h"

struct topic *topics;
uint8_t *message_letters;

/* Letters without a pattern, so that no broker gains by compressing what it keeps; the same in every run. */
static void draw_letters(uint8_t *to, unsigned count)
{
    uint32_t state = 2463534242u;
    for (unsigned i = 0; i < count; i++) {
        state ^= state << 13;
        state ^= state >> 17;
        state ^= state << 5;
        to[i] = (uint8_t)('a' + state % 26);
    }
}

void messages_begin(const struct job *job, char separator)
{
    message_letters = malloc(job->message_bytes);
    topics = calloc(job->topics, sizeof *topics);
    if (!message_letters || !topics)
        fail("there is no memory for %u topics and a message of %u bytes", job->topics, job->message_bytes);
    draw_letters(message_letters, job->message_bytes);
    for (unsigned i = 0; i < job->topics; i++)
        topics[i].length =
            (uint32_t)snprintf(topics[i].name, TOPIC_BYTES_MAX, "%s%c%04u", job->name, separator, i);
}
