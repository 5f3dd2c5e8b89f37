#pragma once

#include "line.h"

/*
 * The body of a batch of Headwater: columns, each at a multiple of 8 bytes from the body's start, with zeros between.
 *
 *     messages n, topics t, 0, 0     u32 each
 *     topic names                    u32[t+1] offsets, then bytes
 *     topic index                    u32[n]
 *     times                          u64[n], µs
 *     payloads                       u32[n+1] offsets, then bytes
 */
static inline size_t padding(size_t length) { return -length & 7; }

static inline void pad(struct bytes *out, size_t start) { bytes_add_zeros(out, padding(bytes_waiting(out) - start)); }

/* A body of messages that follow each other. */
void batch_add(struct bytes *out, const struct job *job, uint64_t first, unsigned count);
/* Tells the line of each message of a body. */
void batch_take(struct line *line, const uint8_t *body, size_t length, uint32_t count);
