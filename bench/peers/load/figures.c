#include "figures.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>

#include "clock.h"

static double seconds(struct timeval time) { return (double)time.tv_sec + (double)time.tv_usec / 1e6; }

static double cpu_seconds(void)
{
    struct rusage used;
    getrusage(RUSAGE_SELF, &used);
    return seconds(used.ru_utime) + seconds(used.ru_stime);
}

void cost_begin(struct cost *cost)
{
    cost->cpu_seconds = cpu_seconds();
    cost->seconds = (double)now_ns() / 1e9;
}

void cost_end(struct cost *cost)
{
    cost->seconds = (double)now_ns() / 1e9 - cost->seconds;
    cost->cpu_seconds = cpu_seconds() - cost->cpu_seconds;
}

static int ascending(const void *one, const void *other)
{
    uint64_t a = *(const uint64_t *)one, b = *(const uint64_t *)other;
    return (a > b) - (a < b);
}

static double quantile_us(const struct rounds *rounds, double part)
{
    return (double)rounds->took_ns[(unsigned)(part * (rounds->count - 1) + 0.5)] / 1e3;
}

void figures_print(uint64_t messages, const struct cost *cost, struct rounds *rounds, const struct cost *published)
{
    printf("{\"messages\": %" PRIu64 ", \"seconds\": %.6f, \"rate\": %.1f", messages, cost->seconds,
           (double)messages / cost->seconds);
    printf(", \"cpu_seconds\": %.6f, \"cpu_share\": %.3f", cost->cpu_seconds, cost->cpu_seconds / cost->seconds);
    if (published)
        printf(", \"publish_seconds\": %.6f, \"publish_cpu_seconds\": %.6f", published->seconds,
               published->cpu_seconds);
    if (rounds) {
        qsort(rounds->took_ns, rounds->count, sizeof *rounds->took_ns, ascending);
        printf(", \"p50_us\": %.1f, \"p99_us\": %.1f, \"max_us\": %.1f", quantile_us(rounds, 0.5),
               quantile_us(rounds, 0.99), quantile_us(rounds, 1.0));
    }
    puts("}");
}
