#pragma once

#include "bytes.h"

/* As much of MessagePack as requests need. */
void pack_map(struct bytes *out, unsigned fields);   /* at most 15 */
void pack_array(struct bytes *out, unsigned values); /* at most 15 */
void pack_text(struct bytes *out, const char *text); /* at most 255 bytes */
void pack_number(struct bytes *out, uint64_t value);
void pack_true(struct bytes *out);
void pack_empty_bytes(struct bytes *out);

/* The text under this key of a map, cut to `capacity`; "" if there is none. Good enough for errors, which are for
 * people: it looks for the key's bytes, and does not care how deep they are. */
void unpack_text(char *to, size_t capacity, const uint8_t *data, size_t length, const char *key);
