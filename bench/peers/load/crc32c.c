#include "crc32c.h"

#include <stdbool.h>
#include <string.h>

enum { SLICES = 8 };

static uint32_t tables[SLICES][256];

/* tables[k][byte] is what a byte does to the sum when k more bytes follow it. */
static void make_tables(void)
{
    for (uint32_t byte = 0; byte < 256; byte++) {
        uint32_t sum = byte;
        for (int bit = 0; bit < 8; bit++)
            sum = sum >> 1 ^ (sum & 1 ? 0x82f63b78u : 0);
        tables[0][byte] = sum;
    }
    for (int k = 1; k < SLICES; k++)
        for (int byte = 0; byte < 256; byte++)
            tables[k][byte] = tables[k - 1][byte] >> 8 ^ tables[0][tables[k - 1][byte] & 255];
}

static uint32_t by_table(uint32_t sum, const uint8_t *data, size_t length)
{
    if (!tables[0][1])
        make_tables();
    for (; length >= SLICES; data += SLICES, length -= SLICES) {
        uint32_t next = 0;
        for (int i = 0; i < SLICES; i++)
            next ^= tables[SLICES - 1 - i][data[i] ^ (i < 4 ? sum >> (8 * i) & 255 : 0)];
        sum = next;
    }
    for (; length; data++, length--)
        sum = sum >> 8 ^ tables[0][(sum ^ *data) & 255];
    return sum;
}

#if defined(__x86_64__)

/* Three sums side by side, because the instruction takes three cycles and may begin in each. They are put together by
 * moving the first two past what follows them, which is a multiplication that the tables below have worked out. */
enum { LANE_BYTES = 1024 };

static uint32_t past_lane[4][256];

static void make_past_lane(void)
{
    static const uint8_t ZEROS[LANE_BYTES];
    for (int place = 0; place < 4; place++)
        for (uint32_t byte = 0; byte < 256; byte++)
            past_lane[place][byte] = by_table(byte << (8 * place), ZEROS, LANE_BYTES);
}

static uint32_t moved(uint32_t sum)
{
    return past_lane[0][sum & 255] ^ past_lane[1][sum >> 8 & 255] ^ past_lane[2][sum >> 16 & 255] ^
           past_lane[3][sum >> 24];
}

static inline uint64_t word(const uint8_t *from)
{
    uint64_t value;
    memcpy(&value, from, sizeof value);
    return value;
}

__attribute__((target("sse4.2"))) static uint32_t by_instruction(uint32_t sum, const uint8_t *data, size_t length)
{
    if (!past_lane[0][1])
        make_past_lane();
    for (; length >= 3 * LANE_BYTES; data += 3 * LANE_BYTES, length -= 3 * LANE_BYTES) {
        uint64_t a = sum, b = 0, c = 0;
        for (const uint8_t *at = data; at < data + LANE_BYTES; at += 8) {
            a = __builtin_ia32_crc32di(a, word(at));
            b = __builtin_ia32_crc32di(b, word(at + LANE_BYTES));
            c = __builtin_ia32_crc32di(c, word(at + 2 * LANE_BYTES));
        }
        sum = moved(moved((uint32_t)a) ^ (uint32_t)b) ^ (uint32_t)c;
    }
    for (; length >= 8; data += 8, length -= 8)
        sum = (uint32_t)__builtin_ia32_crc32di(sum, word(data));
    for (; length; data++, length--)
        sum = __builtin_ia32_crc32qi(sum, *data);
    return sum;
}

static bool has_instruction(void) { return __builtin_cpu_supports("sse4.2"); }

#else

static uint32_t by_instruction(uint32_t sum, const uint8_t *data, size_t length) { return by_table(sum, data, length); }
static bool has_instruction(void) { return false; }

#endif

uint32_t crc32c(const uint8_t *data, size_t length)
{
    return ~(has_instruction() ? by_instruction(~0u, data, length) : by_table(~0u, data, length));
}
