/*
 * AMQP 0-9-1, as RabbitMQ speaks it. Messages go to an exchange of the job's name. What is durable is kept in a durable
 * queue for each subscriber, or in one where nobody subscribes: publishes are persistent and confirmed, deliveries are
 * acked, many at once. What is live goes to queues that end with their subscribers, without acks. A batch is a
 * pipeline: publishes that are sent together.
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "failure.h"
#include "messages.h"
#include "protocol.h"

enum { METHOD = 1, CONTENT_HEADER = 2, CONTENT_BODY = 3, HEARTBEAT = 8, FRAME_END = 0xce };

enum { FRAME_HEADER_BYTES = 7, CHANNEL = 1, PREFETCH = 10000, FRAME_BYTES_MAX = 131072, PERSISTENT = 2 };

/* Methods: class and number. */
enum method {
    CONNECTION_START = 10 << 16 | 10,
    CONNECTION_START_OK = 10 << 16 | 11,
    CONNECTION_TUNE = 10 << 16 | 30,
    CONNECTION_TUNE_OK = 10 << 16 | 31,
    CONNECTION_OPEN = 10 << 16 | 40,
    CONNECTION_OPEN_OK = 10 << 16 | 41,
    CONNECTION_CLOSE = 10 << 16 | 50,
    CHANNEL_OPEN = 20 << 16 | 10,
    CHANNEL_OPEN_OK = 20 << 16 | 11,
    CHANNEL_CLOSE = 20 << 16 | 40,
    EXCHANGE_DECLARE = 40 << 16 | 10,
    EXCHANGE_DECLARE_OK = 40 << 16 | 11,
    QUEUE_DECLARE = 50 << 16 | 10,
    QUEUE_DECLARE_OK = 50 << 16 | 11,
    QUEUE_BIND = 50 << 16 | 20,
    QUEUE_BIND_OK = 50 << 16 | 21,
    QUEUE_DELETE = 50 << 16 | 40,
    QUEUE_DELETE_OK = 50 << 16 | 41,
    BASIC_QOS = 60 << 16 | 10,
    BASIC_QOS_OK = 60 << 16 | 11,
    BASIC_CONSUME = 60 << 16 | 20,
    BASIC_CONSUME_OK = 60 << 16 | 21,
    BASIC_PUBLISH = 60 << 16 | 40,
    BASIC_DELIVER = 60 << 16 | 60,
    BASIC_ACK = 60 << 16 | 80,
    BASIC_NACK = 60 << 16 | 120,
    CONFIRM_SELECT = 85 << 16 | 10,
    CONFIRM_SELECT_OK = 85 << 16 | 11,
};

enum { DURABLE_BIT = 2, EXCLUSIVE_BIT = 4, AUTO_DELETE_BIT = 8, NO_ACK_BIT = 2, MULTIPLE_BIT = 1 };

/* What a line remembers between frames. */
struct progress {
    uint64_t tag;   /* of the last message whose delivery has begun */
    uint64_t whole; /* of the last that has come whole */
    uint64_t floor; /* no publish up to this tag waits for its confirm */
};

/* Frames */

static size_t frame_begin(struct bytes *out, uint8_t type, unsigned channel)
{
    size_t start = bytes_waiting(out);
    bytes_add_u8(out, type);
    bytes_add_be(out, channel, 2);
    bytes_add_zeros(out, 4);
    return start;
}

static void frame_end(struct bytes *out, size_t start)
{
    put_be(bytes_first(out) + start + 3, bytes_waiting(out) - start - FRAME_HEADER_BYTES, 4);
    bytes_add_u8(out, FRAME_END);
}

static size_t method_begin(struct bytes *out, enum method method, unsigned channel)
{
    size_t start = frame_begin(out, METHOD, channel);
    bytes_add_be(out, method, 4);
    return start;
}

static void add_short(struct bytes *out, const char *text, size_t length)
{
    bytes_add_u8(out, (uint8_t)length);
    bytes_add(out, text, length);
}

static void add_text(struct bytes *out, const char *text) { add_short(out, text, strlen(text)); }

/* A publish is three frames: the method, the properties, and the message. */
static void publish(struct line *line, uint64_t first, unsigned count)
{
    const struct job *job = line->job;
    struct bytes *out = &line->out;
    for (uint64_t number = first; number < first + count; number++) {
        const struct topic *topic = topic_of(job, number);
        if (line->is_acked)
            pending_add(&line->pending, 1);
        size_t start = method_begin(out, BASIC_PUBLISH, CHANNEL);
        bytes_add_be(out, 0, 2);
        add_text(out, job->name);
        add_short(out, topic->name, topic->length);
        bytes_add_u8(out, 0);
        frame_end(out, start);
        start = frame_begin(out, CONTENT_HEADER, CHANNEL);
        bytes_add_be(out, BASIC_PUBLISH >> 16, 2);
        bytes_add_be(out, 0, 2);
        bytes_add_be(out, job->message_bytes, 8);
        bytes_add_be(out, line->is_acked ? 1 << 12 : 0, 2); /* which properties there are: the delivery mode */
        if (line->is_acked)
            bytes_add_u8(out, PERSISTENT);
        frame_end(out, start);
        start = frame_begin(out, CONTENT_BODY, CHANNEL);
        message_add(out, number, job->message_bytes);
        frame_end(out, start);
    }
}

/* Understanding */

static _Noreturn void refused(const struct line *line, const uint8_t *arguments, size_t length)
{
    int text_bytes = length > 3 ? arguments[2] : 0; /* code, and a short text */
    fail("RabbitMQ refused %s: %.*s", line_name(line), text_bytes, (const char *)arguments + 3);
}

/* The broker numbers publishes from 1 on, the ledger does so round and round. */
static uint32_t pending_number(uint64_t tag) { return (uint32_t)((tag - 1) % PENDING_MAX + 1); }

/* Confirms may come in any order, one by one or for all up to a tag. */
static void take_confirm(struct line *line, const uint8_t *arguments)
{
    struct progress *progress = line->state;
    uint64_t tag = get_be(arguments, 8);
    if (tag <= progress->floor || tag > line->sent)
        fail("RabbitMQ confirmed publish %" PRIu64 ", which does not wait for it: a doubled or wrong ack", tag);
    if (arguments[8] & MULTIPLE_BIT)
        for (uint64_t below = progress->floor + 1; below < tag; below++)
            if (pending_has(&line->pending, pending_number(below)))
                line->acked += pending_take(&line->pending, pending_number(below));
    line->acked += pending_take(&line->pending, pending_number(tag));
    while (progress->floor < line->sent && !pending_has(&line->pending, pending_number(progress->floor + 1)))
        progress->floor++;
}

static void take_deliver(struct line *line, const uint8_t *arguments, size_t length)
{
    struct progress *progress = line->state;
    size_t consumer_bytes = arguments[0];
    if (length < 1 + consumer_bytes + 8)
        fail("%s got a delivery that is cut", line_name(line));
    progress->tag = get_be(arguments + 1 + consumer_bytes, 8);
}

static void take_method(struct line *line, const uint8_t *data, size_t length)
{
    switch (get_be(data, 4)) {
    case BASIC_ACK:
        take_confirm(line, data + 4);
        break;
    case BASIC_NACK:
        fail("RabbitMQ could not store a message of %s", line_name(line));
    case BASIC_DELIVER:
        take_deliver(line, data + 4, length - 4);
        break;
    case CHANNEL_CLOSE:
    case CONNECTION_CLOSE:
        refused(line, data + 4, length - 4);
    default:
        fail("RabbitMQ sent %s method %u.%u, which does not belong here", line_name(line),
             (unsigned)get_be(data, 2), (unsigned)get_be(data + 2, 2));
    }
}

static void take_message(struct line *line, const uint8_t *data, size_t length)
{
    struct progress *progress = line->state;
    line_delivered(line, data, length);
    progress->whole = progress->tag;
}

static void take_frame(struct line *line, const uint8_t *frame, size_t length)
{
    const uint8_t *payload = frame + FRAME_HEADER_BYTES;
    switch (frame[0]) {
    case METHOD:
        take_method(line, payload, length);
        break;
    case CONTENT_BODY: /* always the whole message: larger ones are refused before they are published */
        take_message(line, payload, length);
        break;
    case CONTENT_HEADER:
    case HEARTBEAT:
        break;
    default:
        fail("RabbitMQ sent %s a frame of type %u", line_name(line), frame[0]);
    }
}

/* How long the frame is; 0 if it is not all there yet. */
static size_t frame_bytes(const uint8_t *data, size_t length)
{
    if (length < FRAME_HEADER_BYTES)
        return 0;
    size_t whole = FRAME_HEADER_BYTES + get_be(data + 3, 4) + 1;
    if (length < whole)
        return 0;
    if (data[whole - 1] != FRAME_END)
        fail("RabbitMQ sent a frame that does not end where it says");
    return whole;
}

/* One ack for all that came together. */
static void ack(struct line *line)
{
    const struct progress *progress = line->state;
    if (line->settled == line->delivered)
        return;
    size_t start = method_begin(&line->out, BASIC_ACK, CHANNEL);
    bytes_add_be(&line->out, progress->whole, 8);
    bytes_add_u8(&line->out, MULTIPLE_BIT);
    frame_end(&line->out, start);
    line->settled = line->delivered;
}

static size_t take(struct line *line, const uint8_t *data, size_t length)
{
    size_t used = 0, whole;
    while ((whole = frame_bytes(data + used, length - used))) {
        take_frame(line, data + used, whole - FRAME_HEADER_BYTES - 1);
        used += whole;
    }
    if (line->role == DURABLE)
        ack(line);
    return used;
}

/* Handshakes */

static void expect(struct line *line, enum method answer)
{
    size_t whole;
    line_send(line);
    while (!(whole = frame_bytes(bytes_first(&line->in), bytes_waiting(&line->in))))
        line_need(line, bytes_waiting(&line->in) + 1);
    const uint8_t *payload = bytes_first(&line->in) + FRAME_HEADER_BYTES;
    enum method got = (enum method)get_be(payload, 4);
    if (got == CHANNEL_CLOSE || got == CONNECTION_CLOSE)
        refused(line, payload + 4, whole - FRAME_HEADER_BYTES - 5);
    if (got != answer)
        fail("RabbitMQ answered %s with method %u.%u", line_name(line), (unsigned)got >> 16, (unsigned)got & 0xffff);
    bytes_drop(&line->in, whole);
}

static void call(struct line *line, size_t start, enum method answer)
{
    frame_end(&line->out, start);
    expect(line, answer);
}

static void log_in(struct line *line)
{
    static const char SECRET[] = "\0guest\0guest";
    struct bytes *out = &line->out;
    bytes_add(out, "AMQP\0\0\x09\x01", 8);
    expect(line, CONNECTION_START);
    size_t start = method_begin(out, CONNECTION_START_OK, 0);
    bytes_add_be(out, 0, 4); /* no properties of the client */
    add_text(out, "PLAIN");
    bytes_add_be(out, sizeof SECRET - 1, 4);
    bytes_add(out, SECRET, sizeof SECRET - 1);
    add_text(out, "en_US");
    call(line, start, CONNECTION_TUNE);
    start = method_begin(out, CONNECTION_TUNE_OK, 0);
    bytes_add_be(out, CHANNEL, 2);
    bytes_add_be(out, FRAME_BYTES_MAX, 4);
    bytes_add_be(out, 0, 2); /* no heartbeats */
    frame_end(out, start);
    start = method_begin(out, CONNECTION_OPEN, 0);
    add_text(out, "/");
    bytes_add_zeros(out, 2);
    call(line, start, CONNECTION_OPEN_OK);
}

static void greet(struct line *line)
{
    if (line->job->message_bytes > FRAME_BYTES_MAX - FRAME_HEADER_BYTES - 1)
        fail("messages of more than a frame, %d bytes, are not made for AMQP", FRAME_BYTES_MAX);
    line->state = calloc(1, sizeof(struct progress));
    if (!line->state)
        fail("there is no memory for a connection");
    log_in(line);
    size_t start = method_begin(&line->out, CHANNEL_OPEN, CHANNEL);
    bytes_add_u8(&line->out, 0);
    call(line, start, CHANNEL_OPEN_OK);
}

/* Every queue gets every message of its exchange, and so the simplest kind of exchange will do. */
static void declare_exchange(struct line *line)
{
    size_t start = method_begin(&line->out, EXCHANGE_DECLARE, CHANNEL);
    bytes_add_be(&line->out, 0, 2);
    add_text(&line->out, line->job->name);
    add_text(&line->out, "fanout");
    bytes_add_u8(&line->out, DURABLE_BIT);
    bytes_add_be(&line->out, 0, 4);
    call(line, start, EXCHANGE_DECLARE_OK);
}

static void declare_queue(struct line *line, const char *queue, uint8_t bits)
{
    struct bytes *out = &line->out;
    size_t start = method_begin(out, QUEUE_DECLARE, CHANNEL);
    bytes_add_be(out, 0, 2);
    add_text(out, queue);
    bytes_add_u8(out, bits);
    bytes_add_be(out, 0, 4);
    call(line, start, QUEUE_DECLARE_OK);
    start = method_begin(out, QUEUE_BIND, CHANNEL);
    bytes_add_be(out, 0, 2);
    add_text(out, queue);
    add_text(out, line->job->name);
    add_text(out, "");
    bytes_add_u8(out, 0);
    bytes_add_be(out, 0, 4);
    call(line, start, QUEUE_BIND_OK);
}

static void delete_queue(struct line *line, const char *queue)
{
    size_t start = method_begin(&line->out, QUEUE_DELETE, CHANNEL);
    bytes_add_be(&line->out, 0, 2);
    add_text(&line->out, queue);
    bytes_add_u8(&line->out, 0);
    call(line, start, QUEUE_DELETE_OK);
}

static void consume(struct line *line, const char *queue, uint8_t bits)
{
    struct bytes *out = &line->out;
    size_t start = method_begin(out, BASIC_QOS, CHANNEL);
    bytes_add_be(out, 0, 4);
    bytes_add_be(out, PREFETCH, 2);
    bytes_add_u8(out, 0);
    call(line, start, BASIC_QOS_OK);
    start = method_begin(out, BASIC_CONSUME, CHANNEL);
    bytes_add_be(out, 0, 2);
    add_text(out, queue);
    add_text(out, "load");
    bytes_add_u8(out, bits);
    bytes_add_be(out, 0, 4);
    call(line, start, BASIC_CONSUME_OK);
}

static void queue_name(char *to, size_t capacity, const struct job *job, enum role role, unsigned place)
{
    snprintf(to, capacity, "load-%s-%d-%u", job->run, role, place);
}

static void open_control(struct line *line, const struct job *job)
{
    line_connect(line, job, &AMQP, CONTROL, 0);
    greet(line);
    declare_exchange(line);
}

/* Without a queue, what is published would be stored nowhere; with one too many, it would be stored twice. */
static void prepare(const struct job *job, unsigned subscribers)
{
    struct line line;
    open_control(&line, job);
    if (!job->adds)
        delete_queue(&line, job->name);
    if (!subscribers)
        declare_queue(&line, job->name, DURABLE_BIT);
    line_close(&line);
}

static void declare(const struct job *job, unsigned place)
{
    struct line line;
    char queue[64];
    open_control(&line, job);
    queue_name(queue, sizeof queue, job, DURABLE, place);
    declare_queue(&line, queue, DURABLE_BIT);
    line_close(&line);
}

static void withdraw(const struct job *job, unsigned place)
{
    struct line line;
    char queue[64];
    open_control(&line, job);
    queue_name(queue, sizeof queue, job, DURABLE, place);
    delete_queue(&line, queue);
    line_close(&line);
}

static void ask_for_confirms(struct line *line)
{
    size_t start = method_begin(&line->out, CONFIRM_SELECT, CHANNEL);
    bytes_add_u8(&line->out, 0);
    call(line, start, CONFIRM_SELECT_OK);
}

static void open_line(struct line *line)
{
    char queue[64];
    greet(line);
    queue_name(queue, sizeof queue, line->job, line->role, line->place);
    if (line->role == PUBLISHER && line->is_acked)
        ask_for_confirms(line);
    if (line->role == LIVE || line->role == IDLE) {
        declare_exchange(line);
        declare_queue(line, queue, EXCLUSIVE_BIT | AUTO_DELETE_BIT);
        consume(line, queue, NO_ACK_BIT);
    }
    if (line->role == DURABLE)
        consume(line, queue, 0);
}

const struct protocol AMQP = {
    .name = "amqp",
    .separator = '.',
    .can = CAN_STORE | CAN_FAN_OUT | CAN_DELIVER | CAN_KEEP,
    .prepare = prepare,
    .declare = declare,
    .withdraw = withdraw,
    .open = open_line,
    .publish = publish,
    .take = take,
};
