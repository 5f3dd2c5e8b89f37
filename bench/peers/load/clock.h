#pragma once

#include <stdint.h>
#include <time.h>

static inline uint64_t clock_ns(clockid_t clock)
{
    struct timespec now;
    clock_gettime(clock, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

/* For what is measured: never jumps. */
static inline uint64_t now_ns(void) { return clock_ns(CLOCK_MONOTONIC); }

/* For what is written into messages: since 1970. */
static inline uint64_t wall_us(void) { return clock_ns(CLOCK_REALTIME) / 1000; }
