#pragma once

#include <stddef.h>
#include <stdint.h>

/* CRC-32C, of Castagnoli, which Headwater's batches carry. */
uint32_t crc32c(const uint8_t *data, size_t length);
