#pragma once

#include <stdbool.h>
#include <stdint.h>

/* What the command line asks for. */
struct job {
    const char *host;
    unsigned port;
    unsigned message_bytes;
    unsigned topics;
    unsigned publishers;
    unsigned subscribers;
    unsigned in_flight;  /* messages, for each publisher */
    unsigned batch;
    unsigned qos;        /* of MQTT */
    uint64_t count;      /* messages, or 0: as many as go in `seconds` */
    uint64_t first;      /* the number of the first message, for those that are added to others */
    double seconds;
    unsigned rounds;
    double timeout_s;    /* how long nothing may happen */

    const char *name;    /* first level of every topic */
    bool adds;           /* leaves in place what is stored; else it begins with nothing */
    char run[24];        /* differs from run to run, so that ids of clients and subscriptions are new */
};
