#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/*
 * What keeps a run honest: each publish is acked once, each message comes to each subscriber once, or the run fails.
 */

/* Publishes that wait for their ack, by the number that the protocol gives them: 1 to 65535, round and round. */
struct pending {
    uint32_t *messages; /* 0: nothing waits under this number */
    uint32_t next;
};

enum { PENDING_MAX = 65535 };

uint32_t pending_add(struct pending *pending, uint32_t messages);
bool pending_has(const struct pending *pending, uint32_t number);
/* How many messages that ack is for; fails if none wait under this number. */
uint32_t pending_take(struct pending *pending, uint32_t number);

/* Which messages a subscriber has seen: a bit each. */
struct seen {
    uint64_t *words;
    size_t count;
};

/* Fails if the message is one that was there before. */
void seen_add(struct seen *seen, uint64_t number);
/* The first number that is missing below `end`, or `end`. */
uint64_t seen_gap(const struct seen *seen, uint64_t end);
