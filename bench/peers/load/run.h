#pragma once

#include "protocol.h"

/* A work under way: publishers, subscribers, and how far they are to go. */
struct run {
    const struct job *job;
    const struct protocol *protocol;
    struct lines lines;
    struct line *publishers, *subscribers;
    unsigned publisher_count, subscriber_count, declared_count;
    bool follows_subscribers; /* publishers stay close to the slowest subscriber, not to their acks */

    uint64_t published;
    uint64_t target;   /* messages to publish */
    uint64_t until_ns; /* when to stop publishing; 0: at the target */
    unsigned turn;
};

void run_begin(struct run *run, const struct job *job, const struct protocol *protocol, unsigned lines);
/* Makes durable subscriptions, and what their messages are stored in. */
void run_declare(struct run *run, unsigned count);
void run_open_subscribers(struct run *run, unsigned count, enum role role);
void run_open_publishers(struct run *run, unsigned count, bool is_acked);

/* As far as the job says: a count, or for some time from now on. */
void run_aim(struct run *run);
/* Publishes up to the target, and handles what comes, until something is true; fails if nothing comes any more. */
void run_on(struct run *run, bool (*is_done)(const struct run *));

/* What may become true: everything is published and, where that is wanted, acked; each subscriber has it all, too; and
 * has acked it. */
bool is_published(const struct run *run);
bool is_delivered(const struct run *run);
bool is_settled(const struct run *run);

/* Ends it: fails if a message or an ack is missing or one too many, and leaves nothing behind at the broker. */
void run_check(struct run *run);
