/*
 * NATS. What is live is its core; what is durable is JetStream: a stream in files that is made here, publishes whose
 * reply subject brings the ack, and pull consumers that ask for batches and ack each message. How often JetStream syncs
 * its files is the server's setting. A batch is a pipeline: publishes that are sent together.
 */
#define _GNU_SOURCE /* memmem */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "failure.h"
#include "messages.h"
#include "protocol.h"

enum {
    SUBSCRIPTION = 1,
    PULL_MESSAGES = 1000, /* a request; the next is under way while the last is answered */
    TOKENS_MAX = 6,
};

/* What a subscriber has asked for and not got yet. */
struct pulling {
    uint64_t asked;
};

/* Subjects */

static void inbox(char *to, size_t capacity, const struct line *line)
{
    snprintf(to, capacity, "_INBOX.%s.%d.%u", line->job->run, line->role, line->place);
}

static void consumer_name(char *to, size_t capacity, const struct job *job, enum role role, unsigned place)
{
    snprintf(to, capacity, "load-%s-%d-%u", job->run, role, place);
}

/* Publishing */

static void publish(struct line *line, uint64_t first, unsigned count)
{
    struct bytes *out = &line->out;
    char reply[64];
    inbox(reply, sizeof reply, line);
    for (uint64_t number = first; number < first + count; number++) {
        const struct topic *topic = topic_of(line->job, number);
        bytes_add(out, "PUB ", 4);
        bytes_add(out, topic->name, topic->length);
        bytes_add_u8(out, ' ');
        if (line->is_acked) {
            bytes_add_text(out, reply);
            bytes_add_u8(out, '.');
            bytes_add_decimal(out, pending_add(&line->pending, 1));
            bytes_add_u8(out, ' ');
        }
        bytes_add_decimal(out, line->job->message_bytes);
        bytes_add(out, "\r\n", 2);
        message_add(out, number, line->job->message_bytes);
        bytes_add(out, "\r\n", 2);
    }
}

/* Understanding */

struct token {
    const char *text;
    size_t length;
};

static uint64_t number_of(struct token token)
{
    uint64_t value = 0;
    for (size_t i = 0; i < token.length; i++)
        value = value * 10 + (uint64_t)(token.text[i] - '0');
    return value;
}

/* MSG <subject> <subscription> [reply] [header bytes, of HMSG] <bytes>, and then the payload. */
struct message {
    struct token subject, reply;
    size_t header_bytes;
    const uint8_t *payload;
    size_t length; /* with the header */
};

static unsigned split(struct token *tokens, const char *line, size_t length)
{
    unsigned count = 0;
    for (size_t at = 0; at < length && count < TOKENS_MAX;) {
        const char *space = memchr(line + at, ' ', length - at);
        size_t end = space ? (size_t)(space - line) : length;
        tokens[count++] = (struct token){line + at, end - at};
        at = end + 1;
    }
    return count;
}

static bool starts(const uint8_t *data, size_t length, const char *word)
{
    return length >= strlen(word) && memcmp(data, word, strlen(word)) == 0;
}

static struct message message_from(const char *line, size_t length)
{
    struct token tokens[TOKENS_MAX];
    unsigned count = split(tokens, line, length);
    bool has_header = line[0] == 'H';
    unsigned sizes = has_header ? 2 : 1;
    if (count < 3 + sizes)
        fail("NATS sent a line that cannot be understood: %.*s", (int)length, line);
    struct message message = {.subject = tokens[1], .length = number_of(tokens[count - 1])};
    if (has_header)
        message.header_bytes = number_of(tokens[count - 2]);
    if (count > 3 + sizes)
        message.reply = tokens[3];
    return message;
}

/* What JetStream says about an error: {"error":{"code":…,"description":"…"}} */
static void check_answer(const struct line *line, const uint8_t *payload, size_t length)
{
    static const char KEY[] = "\"description\":\"";
    const char *text = memmem(payload, length, KEY, sizeof KEY - 1), *end = (const char *)payload + length;
    if (text) {
        text += sizeof KEY - 1;
        const char *quote = memchr(text, '"', (size_t)(end - text));
        fail("JetStream refused %s: %.*s", line_name(line), (int)((quote ? quote : end) - text), text);
    }
}

static void take_ack(struct line *line, const struct message *message)
{
    struct token number = message->subject;
    while (number.length && memchr(number.text, '.', number.length)) {
        number.text++;
        number.length--;
    }
    check_answer(line, message->payload + message->header_bytes, message->length - message->header_bytes);
    line->acked += pending_take(&line->pending, (uint32_t)number_of(number));
}

static void pull(struct line *line)
{
    struct pulling *pulling = line->state;
    char name[64], reply[64], body[80];
    consumer_name(name, sizeof name, line->job, line->role, line->place);
    inbox(reply, sizeof reply, line);
    int body_bytes = snprintf(body, sizeof body, "{\"batch\":%d,\"expires\":3600000000000}", PULL_MESSAGES);
    bytes_print(&line->out, "PUB $JS.API.CONSUMER.MSG.NEXT.%s.%s %s %d\r\n%s\r\n", line->job->name, name, reply,
                body_bytes, body);
    pulling->asked += PULL_MESSAGES;
}

static void take_stored(struct line *line, const struct message *message)
{
    struct pulling *pulling = line->state;
    if (message->header_bytes)
        fail("JetStream ended a request of %s: %.*s", line_name(line), (int)message->header_bytes - 4,
             (const char *)message->payload);
    line_delivered(line, message->payload, message->length);
    if (line->role == DURABLE) {
        bytes_add(&line->out, "PUB ", 4);
        bytes_add(&line->out, message->reply.text, message->reply.length);
        bytes_add(&line->out, " 4\r\n+ACK\r\n", 10);
        line->settled++;
    }
    if (--pulling->asked <= PULL_MESSAGES)
        pull(line);
}

static void take_message(struct line *line, const struct message *message)
{
    if (line->role == PUBLISHER)
        take_ack(line, message);
    else if (line->state)
        take_stored(line, message);
    else
        line_delivered(line, message->payload, message->length);
}

/* A line that is no message. */
static void take_word(struct line *line, const uint8_t *data, size_t length)
{
    if (starts(data, length, "PING"))
        bytes_add(&line->out, "PONG\r\n", 6);
    else if (starts(data, length, "-ERR"))
        fail("NATS refused %s: %.*s", line_name(line), (int)length - 5, (const char *)data + 5);
}

/* Takes one message or line, and returns how many bytes it was; 0 if it is not all there yet. */
static size_t take_one(struct line *line, const uint8_t *data, size_t length)
{
    const uint8_t *end = memchr(data, '\r', length);
    if (!end || end + 2 > data + length)
        return 0;
    size_t used = (size_t)(end - data) + 2;
    if (!starts(data, length, "MSG ") && !starts(data, length, "HMSG ")) {
        take_word(line, data, used - 2);
        return used;
    }
    struct message message = message_from((const char *)data, used - 2);
    if (length - used < message.length + 2)
        return 0;
    message.payload = data + used;
    take_message(line, &message);
    return used + message.length + 2;
}

static size_t take(struct line *line, const uint8_t *data, size_t length)
{
    size_t used = 0, one;
    while (used < length && (one = take_one(line, data + used, length - used)))
        used += one;
    return used;
}

/* Handshakes */

/* Waits for a line that starts with this word; what comes before it is no concern of a handshake. Returns its length
 * without its end; it is still there. */
static size_t need_line(struct line *line, const char *word)
{
    line_send(line);
    for (;;) {
        size_t length = bytes_waiting(&line->in);
        const uint8_t *data = bytes_first(&line->in), *end = length ? memchr(data, '\r', length) : NULL;
        if (!end || end + 2 > data + length) {
            line_need(line, length + 1);
            continue;
        }
        if (starts(data, length, word))
            return (size_t)(end - data);
        if (starts(data, length, "HMSG")) /* of all answers that a handshake may get, only this one has a header */
            fail("nobody answers %s: JetStream is not enabled", line_name(line));
        take_word(line, data, (size_t)(end - data));
        bytes_drop(&line->in, (size_t)(end - data) + 2);
    }
}

static void expect(struct line *line, const char *word) { bytes_drop(&line->in, need_line(line, word) + 2); }

/* Once the PONG is there, so is everything that was asked for before. */
static void settle(struct line *line)
{
    bytes_add(&line->out, "PING\r\n", 6);
    expect(line, "PONG");
}

static void greet(struct line *line)
{
    expect(line, "INFO");
    bytes_add_text(&line->out, "CONNECT {\"verbose\":false,\"pedantic\":false,\"headers\":true,\"no_responders\":true,"
                               "\"name\":\"load\",\"lang\":\"c\",\"version\":\"1\",\"protocol\":1}\r\n");
    settle(line);
}

static void subscribe(struct line *line, const char *subject)
{
    bytes_print(&line->out, "SUB %s %d\r\n", subject, SUBSCRIPTION);
    settle(line);
}

/* Asks JetStream for something. Errors that are no surprise are let pass. */
static void ask(struct line *line, bool may_fail, const char *subject, const char *body)
{
    char reply[64];
    inbox(reply, sizeof reply, line);
    bytes_print(&line->out, "PUB %s %s %zu\r\n%s\r\n", subject, reply, strlen(body), body);
    size_t line_bytes = need_line(line, "MSG");
    struct message message = message_from((const char *)bytes_first(&line->in), line_bytes);
    size_t whole = line_bytes + 2 + message.length + 2;
    const uint8_t *data = line_need(line, whole);
    if (!may_fail)
        check_answer(line, data + line_bytes + 2, message.length);
    bytes_drop(&line->in, whole);
}

static void open_control(struct line *line, const struct job *job, unsigned place)
{
    char subject[64];
    line_connect(line, job, &NATS, CONTROL, place);
    greet(line);
    inbox(subject, sizeof subject, line);
    subscribe(line, subject);
}

static void prepare(const struct job *job, unsigned subscribers)
{
    (void)subscribers;
    struct line line;
    char subject[80], body[200];
    open_control(&line, job, 0);
    snprintf(subject, sizeof subject, "$JS.API.STREAM.DELETE.%s", job->name);
    if (!job->adds)
        ask(&line, true, subject, "");
    snprintf(subject, sizeof subject, "$JS.API.STREAM.CREATE.%s", job->name);
    snprintf(body, sizeof body, "{\"name\":\"%s\",\"subjects\":[\"%s.*\"],\"storage\":\"file\",\"num_replicas\":1}",
             job->name, job->name);
    ask(&line, false, subject, body);
    line_close(&line);
}

static void make_consumer(const struct job *job, enum role role, unsigned place)
{
    struct line line;
    char name[64], subject[160], body[400];
    open_control(&line, job, place);
    consumer_name(name, sizeof name, job, role, place);
    snprintf(subject, sizeof subject, "$JS.API.CONSUMER.DURABLE.CREATE.%s.%s", job->name, name);
    snprintf(body, sizeof body,
             "{\"stream_name\":\"%s\",\"config\":{\"durable_name\":\"%s\",\"deliver_policy\":\"all\","
             "%s,\"replay_policy\":\"instant\"}}",
             job->name, name,
             role == DURABLE ? "\"ack_policy\":\"explicit\",\"max_ack_pending\":100000"
                             : "\"ack_policy\":\"none\",\"inactive_threshold\":5000000000" /* goes by itself */);
    ask(&line, false, subject, body);
    line_close(&line);
}

static void declare(const struct job *job, unsigned place) { make_consumer(job, DURABLE, place); }

static void withdraw(const struct job *job, unsigned place)
{
    struct line line;
    char name[64], subject[160];
    open_control(&line, job, place);
    consumer_name(name, sizeof name, job, DURABLE, place);
    snprintf(subject, sizeof subject, "$JS.API.CONSUMER.DELETE.%s.%s", job->name, name);
    ask(&line, false, subject, "");
    line_close(&line);
}

static void begin_pulling(struct line *line)
{
    line->state = calloc(1, sizeof(struct pulling));
    if (!line->state)
        fail("there is no memory for a subscriber");
    pull(line);
    pull(line);
}

static void open_line(struct line *line)
{
    char subject[72];
    greet(line);
    switch (line->role) {
    case PUBLISHER:
        inbox(subject, sizeof subject - 2, line);
        strcat(subject, ".*");
        subscribe(line, subject);
        break;
    case LIVE:
        snprintf(subject, sizeof subject, "%s.*", line->job->name);
        subscribe(line, subject);
        break;
    case IDLE:
        snprintf(subject, sizeof subject, "%s.idle.%u", line->job->name, line->place);
        subscribe(line, subject);
        break;
    case REPLAY:
        make_consumer(line->job, REPLAY, line->place);
        /* fall through */
    case DURABLE:
        inbox(subject, sizeof subject, line);
        subscribe(line, subject);
        begin_pulling(line);
        break;
    case CONTROL:
        break;
    }
}

const struct protocol NATS = {
    .name = "nats",
    .separator = '.',
    .can = CAN_STORE | CAN_FAN_OUT | CAN_DELIVER | CAN_KEEP | CAN_REPLAY,
    .prepare = prepare,
    .declare = declare,
    .withdraw = withdraw,
    .open = open_line,
    .publish = publish,
    .take = take,
};
