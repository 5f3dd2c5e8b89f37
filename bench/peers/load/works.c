#include "works.h"

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "clock.h"
#include "failure.h"
#include "figures.h"
#include "run.h"

static struct cost measured(struct run *run, bool (*is_done)(const struct run *))
{
    struct cost cost;
    cost_begin(&cost);
    run_on(run, is_done);
    cost_end(&cost);
    return cost;
}

static void publish_work(const struct job *job, const struct protocol *protocol)
{
    struct run run;
    run_begin(&run, job, protocol, job->publishers);
    run_declare(&run, 0);
    run_open_publishers(&run, job->publishers, true);
    run_aim(&run);
    struct cost cost = measured(&run, is_published);
    run_check(&run);
    figures_print(run.published, &cost, NULL, NULL);
}

static void deliver_work(const struct job *job, const struct protocol *protocol)
{
    struct run run;
    run_begin(&run, job, protocol, job->publishers + job->subscribers);
    run_declare(&run, job->subscribers);
    run_open_subscribers(&run, job->subscribers, DURABLE);
    run_open_publishers(&run, job->publishers, true);
    run_aim(&run);
    struct cost cost = measured(&run, is_settled);
    run_check(&run);
    figures_print(run.published * job->subscribers, &cost, NULL, NULL);
}

static void backlog_work(const struct job *job, const struct protocol *protocol)
{
    struct run run;
    run_begin(&run, job, protocol, job->publishers + job->subscribers);
    run_declare(&run, job->subscribers);
    run_open_publishers(&run, job->publishers, true);
    run_aim(&run);
    struct cost published = measured(&run, is_published);
    struct cost cost;
    cost_begin(&cost);
    run_open_subscribers(&run, job->subscribers, DURABLE);
    run_on(&run, is_settled);
    cost_end(&cost);
    run_check(&run);
    figures_print(run.published * job->subscribers, &cost, NULL, &published);
}

static void fanout_work(const struct job *job, const struct protocol *protocol)
{
    struct run run;
    run_begin(&run, job, protocol, job->publishers + job->subscribers);
    run.follows_subscribers = true;
    run_open_subscribers(&run, job->subscribers, LIVE);
    run_open_publishers(&run, job->publishers, job->qos > 0);
    run_aim(&run);
    struct cost cost = measured(&run, is_delivered);
    run_check(&run);
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
        run_on(run, is_delivered);
        rounds.took_ns[i] = now_ns() - begun_ns;
        run_on(run, is_over);
    }
    cost_end(&cost);
    run_check(run);
    figures_print(rounds.count, &cost, &rounds, NULL);
    free(rounds.took_ns);
}

static void roundtrip_work(const struct job *job, const struct protocol *protocol)
{
    struct run run;
    run_begin(&run, job, protocol, 2);
    run.follows_subscribers = true;
    run_open_subscribers(&run, 1, LIVE);
    run_open_publishers(&run, 1, job->qos > 0);
    rounds_of(&run, is_delivered);
}

static void durable_roundtrip_work(const struct job *job, const struct protocol *protocol)
{
    struct run run;
    run_begin(&run, job, protocol, 2);
    run_declare(&run, 1);
    run_open_subscribers(&run, 1, DURABLE);
    run_open_publishers(&run, 1, true);
    rounds_of(&run, is_settled);
}

static void replay_work(const struct job *job, const struct protocol *protocol)
{
    struct run run;
    run_begin(&run, job, protocol, 1);
    struct cost cost;
    cost_begin(&cost);
    run_open_subscribers(&run, 1, REPLAY);
    run.target = run.published = job->count;
    run_on(&run, is_delivered);
    cost_end(&cost);
    run_check(&run);
    figures_print(job->count, &cost, NULL, NULL);
}

/* Holds its connections until its input ends; whoever asked for it looks at the broker meanwhile. */
static void idle_work(const struct job *job, const struct protocol *protocol)
{
    struct run run;
    run_begin(&run, job, protocol, job->subscribers);
    run_open_subscribers(&run, job->subscribers, IDLE);
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
