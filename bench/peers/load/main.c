/*
 * load: puts a broker under load, and says how it did.
 *
 *     load <protocol> <work> --port N [--count N | --seconds S] [options]
 *
 * One process, one thread, no dependency but libc: built on the spot by `cc -O2 -o load *.c`. A work (works.c, with
 * what they share in run.c) is written once for all brokers, and speaks with them through a table of functions
 * (protocol.h), which each protocol fills in its own file. Results are one line of JSON; problems are a sentence on stderr and status 2. A message that
 * is lost, doubled or acked twice is a problem, not a figure (ledger.h).
 */
#include <errno.h>
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <unistd.h>

#include "clock.h"
#include "failure.h"
#include "messages.h"
#include "works.h"

static const struct protocol *const PROTOCOLS[] = {&NATIVE, &MQTT, &REDIS, &NATS, &AMQP, &SINK};

enum { PROTOCOL_COUNT = sizeof PROTOCOLS / sizeof *PROTOCOLS };

static const struct protocol *protocol_named(const char *name)
{
    for (unsigned i = 0; i < PROTOCOL_COUNT; i++)
        if (strcmp(PROTOCOLS[i]->name, name) == 0)
            return PROTOCOLS[i];
    return NULL;
}

static _Noreturn void usage(void)
{
    char works[200], protocols[100];
    works_list(works, sizeof works);
    size_t used = 0;
    for (unsigned i = 0; i < PROTOCOL_COUNT; i++)
        used += (size_t)snprintf(protocols + used, sizeof protocols - used, "%s%s", i ? ", " : "", PROTOCOLS[i]->name);
    fprintf(stderr,
            "usage: load <protocol> <work> --port N [--host 127.0.0.1] [--bytes 400] [--topics 1] [--publishers 1]\n"
            "            [--subscribers 1] [--in-flight 1000] [--batch 1] [--count N | --seconds 1] [--rounds 1000]\n"
            "            [--qos 0|1|2] [--first 0] [--timeout 60]\n"
            "protocols: %s\nworks: %s\n",
            protocols, works);
    exit(2);
}

enum setting {
    PORT = 1,
    HOST,
    BYTES,
    TOPICS,
    PUBLISHERS,
    SUBSCRIBERS,
    IN_FLIGHT,
    BATCH,
    COUNT,
    FIRST,
    SECONDS,
    ROUNDS,
    QOS,
    TIMEOUT,
};

static const struct option OPTIONS[] = {
    {"port", required_argument, NULL, PORT},
    {"host", required_argument, NULL, HOST},
    {"bytes", required_argument, NULL, BYTES},
    {"topics", required_argument, NULL, TOPICS},
    {"publishers", required_argument, NULL, PUBLISHERS},
    {"subscribers", required_argument, NULL, SUBSCRIBERS},
    {"in-flight", required_argument, NULL, IN_FLIGHT},
    {"batch", required_argument, NULL, BATCH},
    {"count", required_argument, NULL, COUNT},
    {"first", required_argument, NULL, FIRST},
    {"seconds", required_argument, NULL, SECONDS},
    {"rounds", required_argument, NULL, ROUNDS},
    {"qos", required_argument, NULL, QOS},
    {"timeout", required_argument, NULL, TIMEOUT},
    {NULL, 0, NULL, 0},
};

static uint64_t whole(const char *option, const char *text, uint64_t least, uint64_t most)
{
    char *end;
    errno = 0;
    unsigned long long value = strtoull(text, &end, 10);
    if (errno || *end || end == text || *text == '-' || value < least || value > most)
        fail("--%s is %s; give a whole number from %llu to %llu", option, text, (unsigned long long)least,
             (unsigned long long)most);
    return value;
}

static double positive(const char *option, const char *text)
{
    char *end;
    double value = strtod(text, &end);
    if (*end || end == text || !(value > 0 && value < 1e6))
        fail("--%s is %s; give a number of seconds above 0", option, text);
    return value;
}

static void set(struct job *job, const char *name, enum setting setting, const char *text)
{
    switch (setting) {
    case PORT: job->port = (unsigned)whole(name, text, 1, 65535); break;
    case HOST: job->host = text; break;
    case BYTES: job->message_bytes = (unsigned)whole(name, text, NUMBER_BYTES, 1 << 20); break;
    case TOPICS: job->topics = (unsigned)whole(name, text, 1, 1000000); break;
    case PUBLISHERS: job->publishers = (unsigned)whole(name, text, 1, 10000); break;
    case SUBSCRIBERS: job->subscribers = (unsigned)whole(name, text, 1, 100000); break;
    case IN_FLIGHT: job->in_flight = (unsigned)whole(name, text, 1, 1000000); break;
    case BATCH: job->batch = (unsigned)whole(name, text, 1, 100000); break;
    case COUNT: job->count = whole(name, text, 1, UINT64_C(1) << 40); break;
    case FIRST: job->first = whole(name, text, 0, UINT64_C(1) << 40); break;
    case SECONDS: job->seconds = positive(name, text); break;
    case ROUNDS: job->rounds = (unsigned)whole(name, text, 1, 10000000); break;
    case QOS: job->qos = (unsigned)whole(name, text, 0, 2); break;
    case TIMEOUT: job->timeout_s = positive(name, text); break;
    }
}

static struct job job_from(int count, char **arguments, const struct work *work)
{
    struct job job = {
        .host = "127.0.0.1",
        .message_bytes = 400,
        .topics = 1,
        .publishers = 1,
        .subscribers = 1,
        .in_flight = 1000,
        .batch = 1,
        .qos = work->needs == CAN_FAN_OUT ? 0 : 1,
        .seconds = 1,
        .rounds = 1000,
        .timeout_s = 60,
        .name = work->topics,
        .adds = work->adds,
    };
    snprintf(job.run, sizeof job.run, "%llx%x", (unsigned long long)wall_us(), (unsigned)getpid());
    int option, place = 0;
    while ((option = getopt_long(count, arguments, "", OPTIONS, &place)) != -1) {
        if (option == '?')
            usage();
        set(&job, OPTIONS[place].name, (enum setting)option, optarg);
    }
    if (optind != count)
        fail("%s is no option", arguments[optind]);
    return job;
}

/* What cannot be is told before anything is done. */
static void check(struct job *job, const struct protocol *protocol, const struct work *work)
{
    if (!(protocol->can & work->needs))
        fail("%s cannot do %s", protocol->name, work->name);
    if (!job->port && !protocol->begin)
        fail("say where the broker listens: --port N");
    if (work->needs == CAN_REPLAY && !job->count)
        fail("say how many messages were filled: --count N");
    if (job->first && !work->adds)
        fail("%s begins with message 0: --first is for fill", work->name);
    if (work->needs != CAN_FAN_OUT && !job->qos)
        fail("%s is about acks, which --qos 0 does not have", work->name);
    if (job->in_flight < job->batch)
        job->in_flight = job->batch; /* else no batch would ever be allowed to go */
}

static void allow_many_connections(void)
{
    struct rlimit limit;
    getrlimit(RLIMIT_NOFILE, &limit);
    limit.rlim_cur = limit.rlim_max;
    setrlimit(RLIMIT_NOFILE, &limit);
}

int main(int count, char **arguments)
{
    if (count < 3)
        usage();
    const struct protocol *protocol = protocol_named(arguments[1]);
    const struct work *work = work_named(arguments[2]);
    if (!protocol || !work)
        usage();
    struct job job = job_from(count - 2, arguments + 2, work);
    check(&job, protocol, work);
    allow_many_connections();
    messages_begin(&job, protocol->separator);
    if (protocol->begin)
        protocol->begin(&job);
    work->run(&job, protocol);
    return 0;
}
