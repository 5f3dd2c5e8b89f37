#pragma once

#include "protocol.h"

/* Something to do with a broker, whatever it speaks. */
struct work {
    const char *name;
    void (*run)(const struct job *job, const struct protocol *protocol);
    unsigned needs;     /* what a protocol must be able to do */
    const char *topics; /* their first level: what is live must not be stored, nor be among what others store */
    bool adds;          /* to what earlier runs have stored, which it leaves in place */
};

/* NULL if there is none of this name. */
const struct work *work_named(const char *name);
/* All names, for people. */
void works_list(char *to, size_t capacity);
