#pragma once

#include <stddef.h>
#include <stdint.h>
#include <string.h>

/*
 * A buffer that is written at its end and used up from its start.
 *
 *     data        begin               end             capacity
 *     ├───────────┼───────────────────┼───────────────┤
 *     │ used up   │ waiting           │ free          │
 */
struct bytes {
    uint8_t *data;
    size_t begin, end, capacity;
};

/* Room for so many bytes at the end; `bytes_grow` says how many of them were filled. */
uint8_t *bytes_room(struct bytes *bytes, size_t count);
void bytes_free(struct bytes *bytes);

static inline size_t bytes_waiting(const struct bytes *bytes) { return bytes->end - bytes->begin; }
static inline uint8_t *bytes_first(const struct bytes *bytes) { return bytes->data + bytes->begin; }
static inline void bytes_grow(struct bytes *bytes, size_t count) { bytes->end += count; }

static inline void bytes_drop(struct bytes *bytes, size_t count)
{
    bytes->begin += count;
    if (bytes->begin == bytes->end)
        bytes->begin = bytes->end = 0;
}

static inline void bytes_add(struct bytes *bytes, const void *from, size_t count)
{
    memcpy(bytes_room(bytes, count), from, count);
    bytes_grow(bytes, count);
}

void bytes_add_text(struct bytes *bytes, const char *text);
void bytes_print(struct bytes *bytes, const char *format, ...) __attribute__((format(printf, 2, 3)));
void bytes_add_decimal(struct bytes *bytes, uint64_t value);
void bytes_add_zeros(struct bytes *bytes, size_t count);
void bytes_add_u8(struct bytes *bytes, uint8_t value);

/* Numbers in the order of the protocol: `le` for native, `be` for MQTT and AMQP. */

static inline void put_le(uint8_t *to, uint64_t value, unsigned width)
{
    for (unsigned i = 0; i < width; i++)
        to[i] = (uint8_t)(value >> (8 * i));
}

static inline void put_be(uint8_t *to, uint64_t value, unsigned width)
{
    for (unsigned i = 0; i < width; i++)
        to[i] = (uint8_t)(value >> (8 * (width - 1 - i)));
}

static inline uint64_t get_le(const uint8_t *from, unsigned width)
{
    uint64_t value = 0;
    for (unsigned i = 0; i < width; i++)
        value |= (uint64_t)from[i] << (8 * i);
    return value;
}

static inline uint64_t get_be(const uint8_t *from, unsigned width)
{
    uint64_t value = 0;
    for (unsigned i = 0; i < width; i++)
        value = value << 8 | from[i];
    return value;
}

static inline void bytes_add_le(struct bytes *bytes, uint64_t value, unsigned width)
{
    put_le(bytes_room(bytes, width), value, width);
    bytes_grow(bytes, width);
}

static inline void bytes_add_be(struct bytes *bytes, uint64_t value, unsigned width)
{
    put_be(bytes_room(bytes, width), value, width);
    bytes_grow(bytes, width);
}
