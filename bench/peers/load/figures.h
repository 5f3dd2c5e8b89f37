#pragma once

#include <stdint.h>

/* What a run has cost: between `cost_begin` and `cost_end`. */
struct cost {
    double seconds;
    double cpu_seconds; /* of the generator alone */
};

void cost_begin(struct cost *cost);
void cost_end(struct cost *cost);

/* How long each round took, in nanoseconds. */
struct rounds {
    uint64_t *took_ns;
    unsigned count;
};

/* One line of JSON. `rounds` and `published` (what went before, in a backlog) may be NULL. */
void figures_print(uint64_t messages, const struct cost *cost, struct rounds *rounds, const struct cost *published);
