#pragma once

#include "line.h"

enum {
    CAN_STORE = 1,   /* messages, with an ack for each */
    CAN_FAN_OUT = 2, /* to live subscribers */
    CAN_DELIVER = 4, /* to durable ones, which ack */
    CAN_KEEP = 8,    /* for durable ones that are not there yet */
    CAN_REPLAY = 16, /* what is stored */
};

/* A way to speak with a broker. Works know brokers only through this. */
struct protocol {
    const char *name;
    char separator; /* between the levels of a topic */
    unsigned can; /* some of the above */

    /* Starts whatever else is needed; may be NULL. */
    void (*begin)(struct job *job);
    /* Makes what messages are stored in, empty unless the job adds to it; so many durable subscriptions will be
     * declared. May be NULL. */
    void (*prepare)(const struct job *job, unsigned subscribers);
    /* Makes a durable subscription, whose messages are those from now on. */
    void (*declare)(const struct job *job, unsigned place);
    /* Removes it again, so that the next run is not slowed down by a subscription that nobody takes from. */
    void (*withdraw)(const struct job *job, unsigned place);
    /* Greets the broker, and subscribes as the line's role wants; once it returns, nothing will be missed. */
    void (*open)(struct line *line);
    /* Has the messages from `first` on sent. */
    void (*publish)(struct line *line, uint64_t first, unsigned count);
    /* Understands as many whole packets as there are, has those answered that want it, and returns how many bytes that
     * were. It counts in the line what was acked, delivered and settled. */
    size_t (*take)(struct line *line, const uint8_t *data, size_t length);
};

extern const struct protocol NATIVE, MQTT, REDIS, NATS, AMQP, SINK;
