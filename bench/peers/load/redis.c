/*
 * Redis. What is durable is in streams, one for each topic: XADD, and a consumer group that reads with XREADGROUP and
 * acks with XACK. What is live is PUBLISH and SUBSCRIBE. A batch is a pipeline: commands that are sent together.
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "failure.h"
#include "messages.h"
#include "protocol.h"

enum { READ_COUNT = 1000, ID_BYTES_MAX = 44 };

/* Encoding: a command is an array of strings. */

static void add_command(struct bytes *out, size_t words)
{
    bytes_add_u8(out, '*');
    bytes_add_decimal(out, words);
    bytes_add(out, "\r\n", 2);
}

static void add_head(struct bytes *out, size_t length)
{
    bytes_add_u8(out, '$');
    bytes_add_decimal(out, length);
    bytes_add(out, "\r\n", 2);
}

static void add_bytes(struct bytes *out, const void *data, size_t length)
{
    add_head(out, length);
    bytes_add(out, data, length);
    bytes_add(out, "\r\n", 2);
}

static void add_word(struct bytes *out, const char *word) { add_bytes(out, word, strlen(word)); }

static void add_topic(struct bytes *out, const struct topic *topic) { add_bytes(out, topic->name, topic->length); }

static void add_number(struct bytes *out, uint64_t number)
{
    char text[24];
    add_bytes(out, text, (size_t)snprintf(text, sizeof text, "%" PRIu64, number));
}

static void add_message(struct bytes *out, const struct job *job, uint64_t number)
{
    add_head(out, job->message_bytes);
    message_add(out, number, job->message_bytes);
    bytes_add(out, "\r\n", 2);
}

static void publish(struct line *line, uint64_t first, unsigned count)
{
    struct bytes *out = &line->out;
    for (uint64_t number = first; number < first + count; number++) {
        const struct topic *topic = topic_of(line->job, number);
        if (line->is_acked) {
            add_command(out, 5);
            add_word(out, "XADD");
            add_topic(out, topic);
            add_word(out, "*");
            add_word(out, "m");
        } else {
            add_command(out, 3);
            add_word(out, "PUBLISH");
            add_topic(out, topic);
        }
        add_message(out, line->job, number);
    }
}

/* Decoding: replies nest, and are read in place once they are whole. */

struct reader {
    const uint8_t *at, *end;
};

/* Where the line that begins here ends, or NULL. */
static const uint8_t *line_end(const struct reader *reader)
{
    const uint8_t *found = memchr(reader->at, '\r', (size_t)(reader->end - reader->at));
    return found && found + 1 < reader->end ? found : NULL;
}

/* The number behind a type, such as the 5 of "*5". */
static int64_t head(struct reader *reader, const uint8_t *end)
{
    bool is_negative = reader->at[1] == '-';
    int64_t value = 0;
    for (const uint8_t *at = reader->at + 1 + is_negative; at < end; at++)
        value = value * 10 + (*at - '0');
    reader->at = end + 2;
    return is_negative ? -value : value;
}

/* How long the reply is; 0 if it is not all there yet. */
static size_t reply_bytes(const uint8_t *data, size_t length)
{
    struct reader reader = {data, data + length};
    for (int64_t wanted = 1; wanted; wanted--) {
        const uint8_t *end = reader.at < reader.end ? line_end(&reader) : NULL;
        if (!end)
            return 0;
        uint8_t type = *reader.at;
        if (type != '*' && type != '$') {
            reader.at = end + 2;
            continue;
        }
        int64_t value = head(&reader, end);
        if (type == '*' && value > 0)
            wanted += value;
        if (type == '$' && value >= 0) {
            if (reader.end - reader.at < value + 2)
                return 0;
            reader.at += value + 2;
        }
    }
    return (size_t)(reader.at - data);
}

static int64_t read_number(struct reader *reader, const struct line *line, uint8_t type)
{
    if (reader->at >= reader->end || *reader->at != type)
        fail("Redis sent %s a reply that does not belong here", line_name(line));
    return head(reader, line_end(reader));
}

static const uint8_t *read_bytes(struct reader *reader, const struct line *line, size_t *length)
{
    int64_t count = read_number(reader, line, '$');
    if (count < 0)
        fail("Redis sent %s nothing where there should be something", line_name(line));
    const uint8_t *data = reader->at;
    reader->at += count + 2;
    *length = (size_t)count;
    return data;
}

/* Streams */

static void group_name(char *to, size_t capacity, const struct job *job, unsigned place)
{
    snprintf(to, capacity, "load-%s-%u", job->run, place);
}

/* The ids up to which a replay has read its streams. */
typedef char stream_id[ID_BYTES_MAX];

static void ask_for_more(struct line *line)
{
    struct bytes *out = &line->out;
    const struct job *job = line->job;
    const stream_id *ids = line->state;
    char group[64];
    group_name(group, sizeof group, job, line->place);
    add_command(out, (ids ? 4 : 9) + 2 * (size_t)job->topics);
    if (ids) {
        add_word(out, "XREAD");
    } else {
        add_word(out, "XREADGROUP");
        add_word(out, "GROUP");
        add_word(out, group);
        add_word(out, "reader");
        add_word(out, "BLOCK");
        add_word(out, "0");
    }
    add_word(out, "COUNT");
    add_number(out, READ_COUNT);
    add_word(out, "STREAMS");
    for (unsigned i = 0; i < job->topics; i++)
        add_topic(out, &topics[i]);
    for (unsigned i = 0; i < job->topics; i++)
        add_word(out, ids ? ids[i] : ">");
}

static void begin_ack(struct line *line, const uint8_t *stream, size_t stream_bytes, int64_t entries)
{
    char group[64];
    group_name(group, sizeof group, line->job, line->place);
    add_command(&line->out, 3 + (size_t)entries);
    add_word(&line->out, "XACK");
    add_bytes(&line->out, stream, stream_bytes);
    add_word(&line->out, group);
}

/* Which of the topics a stream is: its name ends with the number. */
static unsigned topic_place(const struct line *line, const uint8_t *stream, size_t length)
{
    unsigned place = 0;
    for (size_t i = strlen(line->job->name) + 1; i < length; i++)
        place = place * 10 + (unsigned)(stream[i] - '0');
    if (place >= line->job->topics)
        fail("Redis sent %s a stream that it did not ask for", line_name(line));
    return place;
}

/* *2 [id, *2 ["m", message]] */
static void take_entry(struct line *line, struct reader *reader, unsigned place)
{
    size_t id_bytes, ignored, message_bytes;
    read_number(reader, line, '*');
    const uint8_t *id = read_bytes(reader, line, &id_bytes);
    read_number(reader, line, '*');
    read_bytes(reader, line, &ignored);
    const uint8_t *message = read_bytes(reader, line, &message_bytes);
    line_delivered(line, message, message_bytes);
    if (line->role == DURABLE)
        add_bytes(&line->out, id, id_bytes);
    else
        snprintf(((stream_id *)line->state)[place], ID_BYTES_MAX, "%.*s", (int)id_bytes, (const char *)id);
}

/* *streams [*2 [name, *entries [...]]] */
static void take_streams(struct line *line, struct reader *reader)
{
    int64_t streams = read_number(reader, line, '*');
    if (streams < 0)
        fail("there is nothing more to read after %" PRIu64 " messages", line->delivered);
    for (; streams; streams--) {
        size_t stream_bytes;
        read_number(reader, line, '*');
        const uint8_t *stream = read_bytes(reader, line, &stream_bytes);
        unsigned place = topic_place(line, stream, stream_bytes);
        int64_t entries = read_number(reader, line, '*');
        if (line->role == DURABLE)
            begin_ack(line, stream, stream_bytes, entries);
        for (; entries; entries--)
            take_entry(line, reader, place);
    }
    if (line->role == DURABLE || line->delivered < line->job->count)
        ask_for_more(line);
}

/* *3 ["message", channel, message] */
static void take_live(struct line *line, struct reader *reader)
{
    size_t length = 0;
    read_number(reader, line, '*');
    read_bytes(reader, line, &length);
    read_bytes(reader, line, &length);
    const uint8_t *message = read_bytes(reader, line, &length);
    line_delivered(line, message, length);
}

static void take_reply(struct line *line, struct reader *reader)
{
    if (*reader->at == '-')
        fail("Redis refused %s: %.*s", line_name(line), (int)(line_end(reader) - reader->at - 1), reader->at + 1);
    if (line->role == PUBLISHER) { /* replies come in the order of commands, one for each */
        if (++line->acked > line->sent)
            fail("Redis answered %s more often than it was asked: a doubled ack", line_name(line));
    } else if (line->role == LIVE) {
        take_live(line, reader);
    } else if (*reader->at == ':') {
        line->settled += (uint64_t)read_number(reader, line, ':');
    } else {
        take_streams(line, reader);
    }
}

static size_t take(struct line *line, const uint8_t *data, size_t length)
{
    size_t used = 0, reply;
    while (used < length && (reply = reply_bytes(data + used, length - used))) {
        struct reader reader = {data + used, data + used + reply};
        take_reply(line, &reader);
        used += reply;
    }
    return used;
}

/* Handshakes */

/* Waits until the next reply is whole, and says how long it is. */
static size_t need_reply(struct line *line)
{
    for (;;) {
        size_t reply = reply_bytes(bytes_first(&line->in), bytes_waiting(&line->in));
        if (reply)
            return reply;
        line_need(line, bytes_waiting(&line->in) + 1);
    }
}

static void expect_replies(struct line *line, unsigned count)
{
    line_send(line);
    for (; count; count--) {
        size_t reply = need_reply(line);
        const char *text = (const char *)bytes_first(&line->in);
        if (*text == '-')
            fail("Redis refused %s: %.*s", line_name(line), (int)reply - 3, text + 1);
        bytes_drop(&line->in, reply);
    }
}

static void subscribe(struct line *line)
{
    struct bytes *out = &line->out;
    bool is_idle = line->role == IDLE;
    unsigned count = is_idle ? 1 : line->job->topics;
    char channel[64];
    snprintf(channel, sizeof channel, "%s:idle:%u", line->job->name, line->place);
    add_command(out, 1 + count);
    add_word(out, "SUBSCRIBE");
    if (is_idle)
        add_word(out, channel);
    else
        for (unsigned i = 0; i < count; i++)
            add_topic(out, &topics[i]);
    expect_replies(line, count);
}

static void begin_replay(struct line *line)
{
    stream_id *ids = calloc(line->job->topics, sizeof *ids);
    if (!ids)
        fail("there is no memory for the ids of %u streams", line->job->topics);
    for (unsigned i = 0; i < line->job->topics; i++)
        snprintf(ids[i], sizeof ids[i], "0");
    line->state = ids;
    ask_for_more(line);
}

static void open_line(struct line *line)
{
    add_command(&line->out, 1);
    add_word(&line->out, "PING");
    expect_replies(line, 1);
    if (line->role == LIVE || line->role == IDLE)
        subscribe(line);
    if (line->role == DURABLE)
        ask_for_more(line);
    if (line->role == REPLAY)
        begin_replay(line);
}

static void prepare(const struct job *job, unsigned subscribers)
{
    (void)subscribers;
    if (job->adds)
        return;
    struct line line;
    line_connect(&line, job, &REDIS, CONTROL, 0);
    add_command(&line.out, 1 + job->topics);
    add_word(&line.out, "DEL");
    for (unsigned i = 0; i < job->topics; i++)
        add_topic(&line.out, &topics[i]);
    expect_replies(&line, 1);
    line_close(&line);
}

static void change_groups(const struct job *job, unsigned place, bool is_made)
{
    struct line line;
    char group[64];
    line_connect(&line, job, &REDIS, CONTROL, place);
    group_name(group, sizeof group, job, place);
    for (unsigned i = 0; i < job->topics; i++) {
        add_command(&line.out, is_made ? 6 : 4);
        add_word(&line.out, "XGROUP");
        add_word(&line.out, is_made ? "CREATE" : "DESTROY");
        add_topic(&line.out, &topics[i]);
        add_word(&line.out, group);
        if (is_made) {
            add_word(&line.out, "$");
            add_word(&line.out, "MKSTREAM");
        }
    }
    expect_replies(&line, job->topics);
    line_close(&line);
}

static void declare(const struct job *job, unsigned place) { change_groups(job, place, true); }
static void withdraw(const struct job *job, unsigned place) { change_groups(job, place, false); }

const struct protocol REDIS = {
    .name = "redis",
    .separator = ':',
    .can = CAN_STORE | CAN_FAN_OUT | CAN_DELIVER | CAN_KEEP | CAN_REPLAY,
    .prepare = prepare,
    .declare = declare,
    .withdraw = withdraw,
    .open = open_line,
    .publish = publish,
    .take = take,
};
