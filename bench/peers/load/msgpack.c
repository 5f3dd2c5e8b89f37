#define _GNU_SOURCE /* memmem */
#include "msgpack.h"

#include <stdio.h>

void pack_map(struct bytes *out, unsigned fields) { bytes_add_u8(out, (uint8_t)(0x80 | fields)); }
void pack_array(struct bytes *out, unsigned values) { bytes_add_u8(out, (uint8_t)(0x90 | values)); }

void pack_text(struct bytes *out, const char *text)
{
    size_t length = strlen(text);
    if (length < 32) {
        bytes_add_u8(out, (uint8_t)(0xa0 | length));
    } else {
        bytes_add_u8(out, 0xd9);
        bytes_add_u8(out, (uint8_t)length);
    }
    bytes_add(out, text, length);
}

void pack_number(struct bytes *out, uint64_t value)
{
    bytes_add_u8(out, 0xcf);
    bytes_add_be(out, value, 8);
}

void pack_true(struct bytes *out) { bytes_add_u8(out, 0xc3); }
void pack_empty_bytes(struct bytes *out) { bytes_add(out, "\xc4\0", 2); }

void unpack_text(char *to, size_t capacity, const uint8_t *data, size_t length, const char *key)
{
    char wanted[34];
    int wanted_bytes = snprintf(wanted, sizeof wanted, "%c%s", (char)(0xa0 | strlen(key)), key);
    *to = '\0';
    const uint8_t *at = memmem(data, length, wanted, (size_t)wanted_bytes), *end = data + length;
    if (!at)
        return;
    at += wanted_bytes;
    unsigned prefix = 0; /* bytes of the length, if it has its own */
    size_t text = 0;
    if (at < end && (*at & 0xe0) == 0xa0)
        text = *at & 31;
    else if (at < end && (*at == 0xd9 || *at == 0xda))
        prefix = *at == 0xd9 ? 1 : 2;
    if ((size_t)(end - at) < 1 + prefix)
        return;
    if (prefix)
        text = get_be(at + 1, prefix);
    at += 1 + prefix;
    if (text > (size_t)(end - at))
        text = (size_t)(end - at);
    snprintf(to, capacity, "%.*s", (int)text, (const char *)at);
}
