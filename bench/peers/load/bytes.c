#include "bytes.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include "failure.h"

enum { FIRST_CAPACITY = 64 * 1024 };

/* What waits moves to the front; that is cheap, because by then most has been used up. */
static void compact(struct bytes *bytes)
{
    memmove(bytes->data, bytes_first(bytes), bytes_waiting(bytes));
    bytes->end -= bytes->begin;
    bytes->begin = 0;
}

uint8_t *bytes_room(struct bytes *bytes, size_t count)
{
    if (bytes->capacity - bytes->end < count && bytes->begin > 0)
        compact(bytes);
    if (bytes->capacity - bytes->end < count) {
        size_t capacity = bytes->capacity ? bytes->capacity : FIRST_CAPACITY;
        while (capacity - bytes->end < count)
            capacity *= 2;
        bytes->data = realloc(bytes->data, capacity);
        if (!bytes->data)
            fail("there is no memory for a buffer of %zu bytes; use smaller batches", capacity);
        bytes->capacity = capacity;
    }
    return bytes->data + bytes->end;
}

void bytes_free(struct bytes *bytes)
{
    free(bytes->data);
    *bytes = (struct bytes){0};
}

void bytes_add_text(struct bytes *bytes, const char *text) { bytes_add(bytes, text, strlen(text)); }

void bytes_print(struct bytes *bytes, const char *format, ...)
{
    va_list values;
    va_start(values, format);
    va_list again;
    va_copy(again, values);
    int count = vsnprintf(NULL, 0, format, values);
    vsnprintf((char *)bytes_room(bytes, (size_t)count + 1), (size_t)count + 1, format, again);
    bytes_grow(bytes, (size_t)count);
    va_end(again);
    va_end(values);
}

/* For every message, where printing would be what takes longest. */
void bytes_add_decimal(struct bytes *bytes, uint64_t value)
{
    char digits[20], *at = digits + sizeof digits;
    do {
        *--at = (char)('0' + value % 10);
        value /= 10;
    } while (value);
    bytes_add(bytes, at, (size_t)(digits + sizeof digits - at));
}

void bytes_add_zeros(struct bytes *bytes, size_t count)
{
    memset(bytes_room(bytes, count), 0, count);
    bytes_grow(bytes, count);
}

void bytes_add_u8(struct bytes *bytes, uint8_t value)
{
    *bytes_room(bytes, 1) = value;
    bytes_grow(bytes, 1);
}
