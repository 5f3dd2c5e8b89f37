#include "run.h"

#include <inttypes.h>

#include "clock.h"
#include "failure.h"

enum {
    OUT_BYTES_MAX = 4 << 20, /* that a line has waiting; more would only be copied to and fro */
    LINGER_MS = 50,          /* after the last message, for one too many to show itself */
};

/* Beginning */

void run_begin(struct run *run, const struct job *job, const struct protocol *protocol, unsigned lines)
{
    *run = (struct run){.job = job, .protocol = protocol};
    lines_begin(&run->lines, lines);
}

void run_open_publishers(struct run *run, unsigned count, bool is_acked)
{
    run->publishers = &run->lines.all[run->lines.count];
    run->publisher_count = count;
    for (unsigned place = 0; place < count; place++)
        lines_open(&run->lines, run->job, run->protocol, PUBLISHER, place, is_acked);
}

void run_open_subscribers(struct run *run, unsigned count, enum role role)
{
    run->subscribers = &run->lines.all[run->lines.count];
    run->subscriber_count = count;
    for (unsigned place = 0; place < count; place++)
        lines_open(&run->lines, run->job, run->protocol, role, place, false);
}

void run_declare(struct run *run, unsigned count)
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

bool is_published(const struct run *run)
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

bool is_delivered(const struct run *run)
{
    return is_published(run) && slowest_delivery(run) >= run->target;
}

bool is_settled(const struct run *run)
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
    uint64_t ahead =
        run->follows_subscribers ? run->published - slowest_delivery(run) : publisher->sent - publisher->acked;
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
        publish_on(run, &run->publishers[(run->turn + i) % run->publisher_count]);
    run->turn++; /* who comes first finds the most room */
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
        uint64_t gap = seen_gap(&line->seen, run->published);
        if (gap < run->published)
            fail("nothing has come for %g s: %s has %" PRIu64 " of %" PRIu64 " messages, the first missing is %" PRIu64,
                 run->job->timeout_s, line_name(line), line->delivered, run->published, gap);
    }
    fail("nothing has come for %g s: of %" PRIu64 " published messages %" PRIu64 " are acked", run->job->timeout_s,
         run->published, acked);
}

void run_on(struct run *run, bool (*is_done)(const struct run *))
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
void run_check(struct run *run)
{
    lines_wait(&run->lines, LINGER_MS);
    for (unsigned i = 0; i < run->subscriber_count; i++) {
        const struct line *line = &run->subscribers[i];
        uint64_t gap = seen_gap(&line->seen, run->target);
        bool may_be_more = line->role == REPLAY; /* than was asked for: what is stored goes on */
        if (gap == run->target && line->delivered > run->target && !may_be_more)
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

void run_aim(struct run *run)
{
    run->target = run->job->count ? run->job->count : UINT64_MAX;
    run->until_ns = run->job->count ? 0 : now_ns() + (uint64_t)(run->job->seconds * 1e9);
}
