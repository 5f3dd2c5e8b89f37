/*
 * Headwater's own protocol, as docs/reference/protocol.md has it: a frame for each batch, and with --batch 1 for each message.
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "batch.h"
#include "crc32c.h"
#include "failure.h"
#include "msgpack.h"
#include "protocol.h"

enum kind {
    HELLO = 1,
    CHALLENGE = 2,
    RESPONSE = 3,
    OK = 4,
    REQUEST = 8,
    REPLY = 9,
    ERROR = 10,
    PUBLISH = 16,
    PUBLISHED = 17,
    DELIVER = 18,
    ACK = 19,
    CREDIT = 21,
    NOTICE = 23,
    PING = 32,
    PONG = 33,
    GOODBYE = 34,
};

enum { QUIET = 1, PICKED = 2 };

enum {
    HEADER_BYTES = 12,
    PUBLISHED_BYTES = 24,
    DELIVER_BYTES = 32,
    SUBSCRIPTION = 1,
    SETUP_ID = 0x7fffffff, /* above those of publishes and acks */
    CREDIT_MESSAGES = 100000,
    CREDIT_BYTES = 64 << 20,
    MAX_IN_FLIGHT = 100000,
};

/* Frames */

/* Leaves room for the header; returns where the frame begins. Positions are counted from what waits, because buffers
 * may move when they grow. */
static size_t frame_begin(struct bytes *out)
{
    size_t start = bytes_waiting(out);
    bytes_add_zeros(out, HEADER_BYTES);
    return start;
}

static void frame_end(struct bytes *out, size_t start, enum kind kind, uint8_t flags, uint32_t id)
{
    uint8_t *header = bytes_first(out) + start;
    put_le(header, bytes_waiting(out) - start - 4, 4);
    header[4] = (uint8_t)kind;
    header[5] = flags;
    put_le(header + 6, 0, 2);
    put_le(header + 8, id, 4);
}

/* Publishing: count, crc, lengths of names, sequence; the root; and the body. */

static void publish(struct line *line, uint64_t first, unsigned count)
{
    struct bytes *out = &line->out;
    size_t root_bytes = strlen(line->job->name);
    size_t start = frame_begin(out), payload = start + HEADER_BYTES;
    bytes_add_le(out, count, 4);
    bytes_add_zeros(out, 4); /* the sum comes last */
    bytes_add_le(out, root_bytes, 2);
    bytes_add_zeros(out, 2 + 4 + 8);
    bytes_add_text(out, line->job->name);
    pad(out, payload);
    size_t body = bytes_waiting(out);
    batch_add(out, line->job, first, count);
    uint8_t *data = bytes_first(out);
    put_le(data + payload + 4, crc32c(data + body, bytes_waiting(out) - body), 4);
    if (line->is_acked)
        frame_end(out, start, PUBLISH, 0, pending_add(&line->pending, count));
    else
        frame_end(out, start, PUBLISH, QUIET, 0);
}

static void take_published(struct line *line, const uint8_t *data, size_t length)
{
    for (size_t at = 0; at + PUBLISHED_BYTES <= length; at += PUBLISHED_BYTES)
        line->acked += pending_take(&line->pending, (uint32_t)get_le(data + at, 4));
}

/* Subscribing */

/* What a subscriber has got, and not answered yet. */
struct taking {
    uint64_t messages, bytes; /* for which no new credit was given */
    struct bytes ranges;      /* to ack, each a lease and its first and last offset */
    uint32_t range_count, acked_count;
};

static void add_credit(struct line *line, uint64_t messages, uint64_t body_bytes)
{
    size_t start = frame_begin(&line->out);
    bytes_add_le(&line->out, messages, 8);
    bytes_add_le(&line->out, body_bytes, 8);
    frame_end(&line->out, start, CREDIT, 0, SUBSCRIPTION);
}

/* Whenever half is gone, as clients do: often enough to keep the flow steady, and a frame for many messages. */
static void renew_credit(struct line *line)
{
    struct taking *taking = line->state;
    if (taking->messages < CREDIT_MESSAGES / 2 && taking->bytes < CREDIT_BYTES / 2)
        return;
    add_credit(line, taking->messages, taking->bytes);
    taking->messages = taking->bytes = 0;
}

static void note_ack(struct taking *taking, uint64_t lease, uint64_t first, uint64_t last, uint32_t count)
{
    bytes_add_le(&taking->ranges, lease, 8);
    bytes_add_le(&taking->ranges, first, 8);
    bytes_add_le(&taking->ranges, last, 8);
    taking->range_count++;
    taking->acked_count += count;
}

/* One ack for all that came together. */
static void ack(struct line *line)
{
    struct taking *taking = line->state;
    if (!taking->range_count)
        return;
    size_t start = frame_begin(&line->out);
    bytes_add_le(&line->out, SUBSCRIPTION, 4);
    bytes_add_le(&line->out, taking->range_count, 4);
    bytes_add(&line->out, bytes_first(&taking->ranges), bytes_waiting(&taking->ranges));
    frame_end(&line->out, start, ACK, 0, pending_add(&line->pending, taking->acked_count));
    bytes_drop(&taking->ranges, bytes_waiting(&taking->ranges));
    taking->range_count = taking->acked_count = 0;
}

static void take_deliver(struct line *line, uint8_t flags, const uint8_t *data, size_t length)
{
    if (length < DELIVER_BYTES)
        fail("%s got a DELIVER of %zu bytes", line_name(line), length);
    uint64_t lease = get_le(data, 8), first = get_le(data + 8, 8);
    uint32_t count = (uint32_t)get_le(data + 16, 4);
    uint64_t last = first + count - 1;
    size_t at = DELIVER_BYTES + get_le(data + 28, 2);
    at += padding(at);
    if (flags & PICKED) {
        size_t deltas = (size_t)count * 4;
        if (!count || at + deltas > length)
            fail("%s got a DELIVER that is cut", line_name(line));
        last = first + get_le(data + at + deltas - 4, 4);
        at += deltas + padding(deltas);
    }
    if (at + 16 > length)
        fail("%s got a DELIVER that is cut", line_name(line));
    batch_take(line, data + at, length - at, count);
    struct taking *taking = line->state;
    if (line->role == DURABLE)
        note_ack(taking, lease, first, last, count);
    taking->messages += count;
    taking->bytes += length - at;
}

/* Understanding */

static _Noreturn void refused(const struct line *line, const uint8_t *data, size_t length)
{
    char text[500];
    unpack_text(text, sizeof text, data, length, "text");
    fail("Headwater refused %s: %s", line_name(line), text);
}

static void take_notice(struct line *line, const uint8_t *data, size_t length)
{
    char what[20];
    unpack_text(what, sizeof what, data, length, "what");
    if (line->role == REPLAY && strcmp(what, "over") == 0) {
        if (line->delivered < line->job->count)
            fail("the replay is over after %" PRIu64 " messages", line->delivered);
        return;
    }
    fail("Headwater noticed %s: %s", line_name(line), what);
}

static void take_frame(struct line *line, const uint8_t *frame, size_t length)
{
    const uint8_t *payload = frame + HEADER_BYTES;
    uint32_t id = (uint32_t)get_le(frame + 8, 4);
    length -= HEADER_BYTES;
    switch (frame[4]) {
    case PUBLISHED:
        take_published(line, payload, length);
        break;
    case DELIVER:
        take_deliver(line, frame[5], payload, length);
        break;
    case REPLY: /* to an ACK: there are no other requests by now */
        line->settled += pending_take(&line->pending, id);
        break;
    case NOTICE:
        take_notice(line, payload, length);
        break;
    case PING: {
        size_t start = frame_begin(&line->out);
        bytes_add(&line->out, payload, length);
        frame_end(&line->out, start, PONG, 0, 0);
        break;
    }
    case PONG:
        break;
    case ERROR:
    case GOODBYE:
        refused(line, payload, length);
    default:
        fail("Headwater sent %s a frame of kind %u, which does not belong here", line_name(line), frame[4]);
    }
}

static size_t take(struct line *line, const uint8_t *data, size_t length)
{
    size_t used = 0;
    while (length - used >= HEADER_BYTES) {
        size_t frame_bytes = 4 + get_le(data + used, 4);
        if (frame_bytes < HEADER_BYTES)
            fail("Headwater sent a frame of %zu bytes", frame_bytes);
        if (length - used < frame_bytes)
            break;
        take_frame(line, data + used, frame_bytes);
        used += frame_bytes;
    }
    if (line->state) {
        ack(line);
        renew_credit(line);
    }
    return used;
}

/* Handshakes */

/* Waits for a frame of this kind, and forgets it. */
static void expect(struct line *line, enum kind kind)
{
    line_send(line);
    size_t length = 4 + get_le(line_need(line, HEADER_BYTES), 4);
    const uint8_t *frame = line_need(line, length);
    if (frame[4] == ERROR || frame[4] == GOODBYE)
        refused(line, frame + HEADER_BYTES, length - HEADER_BYTES);
    if (frame[4] != kind)
        fail("Headwater sent a frame of kind %u where one of kind %u was due", frame[4], kind);
    bytes_drop(&line->in, length);
}

static size_t request_begin(struct bytes *out, const char *name, unsigned fields)
{
    size_t start = frame_begin(out);
    pack_map(out, 1 + fields);
    pack_text(out, "do");
    pack_text(out, name);
    return start;
}

static void request_end(struct line *line, size_t start)
{
    frame_end(&line->out, start, REQUEST, 0, SETUP_ID);
    expect(line, REPLY);
}

static void field_text(struct bytes *out, const char *name, const char *value)
{
    pack_text(out, name);
    pack_text(out, value);
}

static void field_number(struct bytes *out, const char *name, uint64_t value)
{
    pack_text(out, name);
    pack_number(out, value);
}

static void greet(struct line *line)
{
    struct bytes *out = &line->out;
    size_t start = frame_begin(out);
    pack_map(out, 3);
    pack_text(out, "versions");
    pack_array(out, 1);
    pack_number(out, 1);
    field_text(out, "software", "load");
    field_text(out, "mechanism", "none");
    frame_end(out, start, HELLO, 0, 0);
    expect(line, CHALLENGE);
    start = frame_begin(out);
    pack_map(out, 1);
    pack_text(out, "final");
    pack_empty_bytes(out);
    frame_end(out, start, RESPONSE, 0, 0);
    expect(line, OK);
    frame_end(out, frame_begin(out), OK, 0, 0);
    request_end(line, request_begin(out, "Register", 0));
}

static void subscription_id(char *to, size_t capacity, const struct job *job, unsigned place)
{
    snprintf(to, capacity, "load-%s-%u", job->run, place);
}

static void add_options(struct bytes *out)
{
    pack_text(out, "options");
    pack_map(out, 1);
    field_number(out, "max_in_flight", MAX_IN_FLIGHT);
}

/* Without credit at first, so that nothing comes before the answer. */
static void subscribe(struct line *line, const char *kind, const char *filter, const char *id)
{
    struct bytes *out = &line->out;
    bool is_replay = line->role == REPLAY;
    line->state = calloc(1, sizeof(struct taking));
    if (!line->state)
        fail("there is no memory for a subscriber");
    size_t start = request_begin(out, "Subscribe", 3 + (id ? 2 : 0) + (is_replay ? 1 : 0));
    field_number(out, "number", SUBSCRIPTION);
    field_text(out, "filter", filter);
    field_text(out, "kind", kind);
    if (id) {
        field_text(out, "id", id);
        add_options(out);
    }
    if (is_replay)
        field_number(out, "after", 0);
    request_end(line, start);
    add_credit(line, CREDIT_MESSAGES, CREDIT_BYTES);
    line_send(line);
}

static void declare(const struct job *job, unsigned place)
{
    struct line line;
    char id[64], filter[64];
    line_connect(&line, job, &NATIVE, CONTROL, place);
    greet(&line);
    subscription_id(id, sizeof id, job, place);
    snprintf(filter, sizeof filter, "%s/#", job->name);
    size_t start = request_begin(&line.out, "CreateSubscription", 3);
    field_text(&line.out, "id", id);
    field_text(&line.out, "filter", filter);
    add_options(&line.out);
    request_end(&line, start);
    line_close(&line);
}

static void withdraw(const struct job *job, unsigned place)
{
    struct line line;
    char id[64];
    line_connect(&line, job, &NATIVE, CONTROL, place);
    greet(&line);
    subscription_id(id, sizeof id, job, place);
    size_t start = request_begin(&line.out, "DeleteSubscription", 2);
    field_text(&line.out, "id", id);
    pack_text(&line.out, "force");
    pack_true(&line.out);
    request_end(&line, start);
    line_close(&line);
}

static void open_line(struct line *line)
{
    char id[64], filter[64];
    greet(line);
    snprintf(filter, sizeof filter, "%s/#", line->job->name);
    switch (line->role) {
    case LIVE:
        subscribe(line, "live", filter, NULL);
        break;
    case DURABLE:
        subscription_id(id, sizeof id, line->job, line->place);
        subscribe(line, "named", filter, id);
        break;
    case REPLAY:
        subscribe(line, "replay", filter, NULL);
        break;
    case IDLE:
        snprintf(filter, sizeof filter, "%s/idle/%u", line->job->name, line->place);
        subscribe(line, "live", filter, NULL);
        break;
    case CONTROL:
    case PUBLISHER:
        break;
    }
}

const struct protocol NATIVE = {
    .name = "native",
    .separator = '/',
    .can = CAN_STORE | CAN_FAN_OUT | CAN_DELIVER | CAN_KEEP | CAN_REPLAY,
    .declare = declare,
    .withdraw = withdraw,
    .open = open_line,
    .publish = publish,
    .take = take,
};
