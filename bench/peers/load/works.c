#include "works.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "clock.h"
#include "failure.h"
#include "figures.h"

enum {
    OUT_BYTES_MAX = 4 << 20, /* that a line has waiting; more would only be copied to and fro */
    LINGER_MS = 50,          /* after the last message, for one too many to show itself */
};

/* A work under way: publishers, subscribers, and how far they are to go. */
struct run {
    const struct job *job;
    const struct protocol *protocol;
    struct lines lines;
    struct line *publishers, *subscribers;
    unsigned publisher_count, subscriber_count, declared_count;
    bool follows_subscribers; /* publishers stay close to the slowest subscriber, not to their acks */

    uint64_t published;
    uint64_t target; /* messages to publish */
    uint64_t until_ns;
};

/* Beginning */

static void begin(struct run *run, const struct job *job, const struct protocol *protocol, unsigned lines)
{
    *run = (struct run){.job = job, .protocol = protocol};
    lines_begin(&run->lines, lines);
}

static void open_publishers(struct run *run, unsigned count, bool is_acked)
{
    run->publishers = &run->lines.all[run->lines.count];
    run->publisher_count = count;
    for (unsigned place = 0; place < count; place++)
        lines_open(&run->lines, run->job, run->protocol, PUBLISHER, place, is_acked);
}

static void open_subscribers(struct run *run, unsigned count, enum role role)
{
    run->subscribers = &run->lines.all[run->lines.count];
    run->subscriber_count = count;
    for (unsigned place = 0; place < count; place++)
        lines_open(&run->lines, run->job, run->protocol, role, place, false);
}

static void declare(struct run *run, unsigned count)
{
    if (run->protocol->prepare)
        run->protocol->prepare(run->job, count);
    for (unsigned place = 0; place < count; place++)
        run->protocol->declare(run->job, place);
    run->declared_count = count;
}

/* How far it is */

static uint64_t slowest_delivery(const struct run *run)
{
    uint64_t least = UINT64_MAX;
    for (unsigned i = 0; i < run->subscriber_count; i++)
        if (run->subscribers[i].delivered < least)
            least = run->subscribers[i].delivered;
    return least;
}

static bool is_published(const struct run *run)
{
    if (run->published < run->target)
        return false;
    for (unsigned i = 0; i < run->publisher_count; i++) {
        const struct line *line = &run->publishers[i];
        if (bytes_waiting(&line->out) || (line->is_acked && line->acked < line->sent))
            return false;
    }
    return true;
}

static bool is_delivered(const struct run *run)
{
    return is_published(run) && slowest_delivery(run) >= run->target;
}

static bool is_settled(const struct run *run)
{
    if (!is_published(run))
        return false;
    for (unsigned i = 0; i < run->subscriber_count; i++)
        if (run->subscribers[i].settled < run->target || bytes_waiting(&run->subscribers[i].out))
            return false;
    return true;
}

/* Publishing */

static uint64_t room(const struct run *run, const struct line *publisher)
{
    uint64_t ahead = run->follows_subscribers ? run->published - slowest_delivery(run) : publisher->sent - publisher->acked;
    return ahead < run->job->in_flight ? run->job->in_flight - ahead : 0;
}

/* Whole batches only, but for the last: a batch that is cut to what there is room for would make all after it small. */
static void publish_on(struct run *run, struct line *publisher)
{
    uint64_t most = room(run, publisher);
    while (run->published < run->target && bytes_waiting(&publisher->out) < OUT_BYTES_MAX) {
        uint64_t left = run->target - run->published;
        unsigned count = left < run->job->batch ? (unsigned)left : run->job->batch;
        if (count > most)
            return;
        run->protocol->publish(publisher, run->job->first + run->published, count);
        publisher->sent += count;
        run->published += count;
        most -= count;
    }
}

static void publish(struct run *run)
{
    if (run->until_ns && run->target > run->published && now_ns() >= run->until_ns)
        run->target = run->published;
    for (unsigned i = 0; i < run->publisher_count; i++)
        publish_on(run, &run->publishers[i]);
}

/* Going on until something is true */

static uint64_t progress(const struct run *run)
{
    uint64_t sum = 0;
    for (unsigned i = 0; i < run->lines.count; i++)
        sum += run->lines.all[i].acked + run->lines.all[i].delivered + run->lines.all[i].settled;
    return sum;
}

static _Noreturn void give_up(const struct run *run)
{
    uint64_t acked = 0;
    for (unsigned i = 0; i < run->publisher_count; i++)
        acked += run->publishers[i].acked;
    for (unsigned i = 0; i < run->subscriber_count; i++) {
        const struct line *line = &run->subscribers[i];
        uint64_t gap = seen_gap(&line->seen, run->target);
        if (gap < run->target)
            fail("nothing has come for %g s: %s has %" PRIu64 " of %" PRIu64 " messages, the first missing is %" PRIu64,
                 run->job->timeout_s, line_name(line), line->delivered, run->target, gap);
    }
    fail("nothing has come for %g s: of %" PRIu64 " published messages %" PRIu64 " are acked", run->job->timeout_s,
         run->published, acked);
}

static void go_on(struct run *run, bool (*is_done)(const struct run *))
{
    uint64_t before = progress(run), heard_ns = now_ns();
    uint64_t timeout_ns = (uint64_t)(run->job->timeout_s * 1e9);
    for (;;) {
        publish(run);
        lines_flush(&run->lines);
        if (is_done(run))
            return;
        lines_wait(&run->lines, 100);
        uint64_t now = progress(run);
        if (now != before) {
            before = now;
            heard_ns = 0;
        } else if (!heard_ns) {
            heard_ns = now_ns();
        } else if (now_ns() - heard_ns > timeout_ns) {
            give_up(run);
        }
    }
}

/* Ending: what came too often has been noticed by the ledgers, if it came soon; here is what never came. */
static void check(struct run *run)
{
    lines_wait(&run->lines, LINGER_MS);
    for (unsigned i = 0; i < run->subscriber_count; i++) {
        const struct line *line = &run->subscribers[i];
        uint64_t gap = seen_gap(&line->seen, run->target);
        if (gap == run->target && line->delivered > run->target)
            fail("%s has %" PRIu64 " messages, which is more than %" PRIu64, line_name(line), line->delivered,
                 run->target);
        if (gap != run->target)
            fail("%s has %" PRIu64 " messages of %" PRIu64 ", and message %" PRIu64 " is not among them",
                 line_name(line), line->delivered, run->target, gap);
    }
    for (unsigned i = 0; i < run->publisher_count; i++)
        if (run->publishers[i].is_acked && run->publishers[i].acked != run->publishers[i].sent)
            fail("%s got %" PRIu64 " acks for %" PRIu64 " messages", line_name(&run->publishers[i]),
                 run->publishers[i].acked, run->publishers[i].sent);
    lines_close(&run->lines);
    for (unsigned place = 0; place < run->declared_count; place++)
        run->protocol->withdraw(run->job, place);
}

static void aim(struct run *run)
{
    run->target = run->job->count ? run->job->count : UINT64_MAX;
    run->until_ns = run->job->count ? 0 : now_ns() + (uint64_t)(run->job->seconds * 1e9);
}

static struct cost measured(struct run *run, bool (*is_done)(const struct run *))
{
    struct cost cost;
    cost_begin(&cost);
    go_on(run, is_done);
    cost_end(&cost);
    return cost;
}

/* The works */

static void publish_work(const struct job *job, const struct protocol *protocol)
{
    struct run run;
    begin(&run, job, protocol, job->publishers);
    declare(&run, 0);
    open_publishers(&run, job->publishers, true);
    aim(&run);
    struct cost cost = measured(&run, is_published);
    check(&run);
    figures_print(run.published, &cost, NULL, NULL);
}

static void deliver_work(const struct job *job, const struct protocol *protocol)
{
    struct run run;
    begin(&run, job, protocol, job->publishers + job->subscribers);
    declare(&run, job->subscribers);
    open_subscribers(&run, job->subscribers, DURABLE);
    open_publishers(&run, job->publishers, true);
    aim(&run);
    struct cost cost = measured(&run, is_settled);
    check(&run);
    figures_print(run.published * job->subscribers, &cost, NULL, NULL);
}

static void backlog_work(const struct job *job, const struct protocol *protocol)
{
    struct run run;
    begin(&run, job, protocol, job->publishers + job->subscribers);
    declare(&run, job->subscribers);
    open_publishers(&run, job->publishers, true);
    aim(&run);
    struct cost published = measured(&run, is_published);
    struct cost cost;
    cost_begin(&cost);
    open_subscribers(&run, job->subscribers, DURABLE);
    go_on(&run, is_settled);
    cost_end(&cost);
    check(&run);
    figures_print(run.published * job->subscribers, &cost, NULL, &published);
}

static void fanout_work(const struct job *job, const struct protocol *protocol)
{
    struct run run;
    begin(&run, job, protocol, job->publishers + job->subscribers);
    run.follows_subscribers = true;
    open_subscribers(&run, job->subscribers, LIVE);
    open_publishers(&run, job->publishers, job->qos > 0);
    aim(&run);
    struct cost cost = measured(&run, is_delivered);
    check(&run);
    figures_print(run.published * job->subscribers, &cost, NULL, NULL);
}

/* One message at a time: from handing it to the kernel until it is back, and acked where it is to be. */
static void rounds_of(struct run *run, bool (*is_over)(const struct run *))
{
    struct rounds rounds = {.took_ns = calloc(run->job->rounds, sizeof(uint64_t)), .count = run->job->rounds};
    if (!rounds.took_ns)
        fail("there is no memory for %u rounds", rounds.count);
    struct cost cost;
    cost_begin(&cost);
    for (unsigned i = 0; i < rounds.count; i++) {
        uint64_t begun_ns = now_ns();
        run->target = i + 1;
        go_on(run, is_delivered);
        rounds.took_ns[i] = now_ns() - begun_ns;
        go_on(run, is_over);
    }
    cost_end(&cost);
    check(run);
    figures_print(rounds.count, &cost, &rounds, NULL);
    free(rounds.took_ns);
}

static void roundtrip_work(const struct job *job, const struct protocol *protocol)
{
    struct run run;
    begin(&run, job, protocol, 2);
    run.follows_subscribers = true;
    open_subscribers(&run, 1, LIVE);
    open_publishers(&run, 1, job->qos > 0);
    rounds_of(&run, is_delivered);
}

static void durable_roundtrip_work(const struct job *job, const struct protocol *protocol)
{
    struct run run;
    begin(&run, job, protocol, 2);
    declare(&run, 1);
    open_subscribers(&run, 1, DURABLE);
    open_publishers(&run, 1, true);
    rounds_of(&run, is_settled);
}

static void replay_work(const struct job *job, const struct protocol *protocol)
{
    struct run run;
    begin(&run, job, protocol, 1);
    struct cost cost;
    cost_begin(&cost);
    open_subscribers(&run, 1, REPLAY);
    run.target = run.published = job->count;
    go_on(&run, is_delivered);
    cost_end(&cost);
    check(&run);
    figures_print(job->count, &cost, NULL, NULL);
}

/* Holds its connections until its input ends; whoever asked for it looks at the broker meanwhile. */
static void idle_work(const struct job *job, const struct protocol *protocol)
{
    struct run run;
    begin(&run, job, protocol, job->subscribers);
    open_subscribers(&run, job->subscribers, IDLE);
    puts("ready");
    fflush(stdout);
    lines_hold(&run.lines, STDIN_FILENO);
    lines_close(&run.lines);
}

static const struct work WORKS[] = {
    {"publish", publish_work, CAN_STORE, "load", false},
    {"deliver", deliver_work, CAN_DELIVER, "load", false},
    {"backlog", backlog_work, CAN_KEEP, "load", false},
    {"fanout", fanout_work, CAN_FAN_OUT, "live", false},
    {"roundtrip", roundtrip_work, CAN_FAN_OUT, "live", false},
    {"durable-roundtrip", durable_roundtrip_work, CAN_DELIVER, "load", false},
    {"fill", publish_work, CAN_STORE, "kept", true},
    {"replay", replay_work, CAN_REPLAY, "kept", true},
    {"idle", idle_work, CAN_FAN_OUT, "live", false},
};

enum { WORK_COUNT = sizeof WORKS / sizeof *WORKS };

const struct work *work_named(const char *name)
{
    for (unsigned i = 0; i < WORK_COUNT; i++)
        if (strcmp(WORKS[i].name, name) == 0)
            return &WORKS[i];
    return NULL;
}

void works_list(char *to, size_t capacity)
{
    size_t used = 0;
    for (unsigned i = 0; i < WORK_COUNT && used < capacity; i++)
        used += (size_t)snprintf(to + used, capacity - used, "%s%s", i ? ", " : "", WORKS[i].name);
}
