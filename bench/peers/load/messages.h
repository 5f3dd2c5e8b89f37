#pragma once

#include "bytes.h"
#include "job.h"

/*
 * What is published: messages are numbered from 0 across all publishers, and message n goes to topic n modulo topics.
 *
 *     0               8                               bytes
 *     ├───────────────┼───────────────────────────────┤
 *     │ number (u64)  │ letters, always the same      │
 */
enum { NUMBER_BYTES = 8, TOPIC_BYTES_MAX = 60 };

/* The job's name, a separator such as "/", and four digits or more. */
struct topic {
    char name[TOPIC_BYTES_MAX];
    uint32_t length;
};

/* Made once, before anything is measured. */
extern struct topic *topics;
extern uint8_t *message_letters;

void messages_begin(const struct job *job, char separator);

static inline const struct topic *topic_of(const struct job *job, uint64_t number)
{
    return &topics[number % job->topics];
}

static inline void message_add(struct bytes *out, uint64_t number, unsigned message_bytes)
{
    uint8_t *to = bytes_room(out, message_bytes);
    put_le(to, number, NUMBER_BYTES);
    memcpy(to + NUMBER_BYTES, message_letters, message_bytes - NUMBER_BYTES);
    bytes_grow(out, message_bytes);
}
