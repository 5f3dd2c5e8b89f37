#include "batch.h"

#include "clock.h"
#include "failure.h"
#include "messages.h"

/* The topics of messages that follow each other: as many as there are, from the first one's on. */
static void add_topics(struct bytes *out, size_t body, const struct job *job, uint64_t first, unsigned count)
{
    unsigned names = count < job->topics ? count : job->topics;
    bytes_add_le(out, count, 4);
    bytes_add_le(out, names, 4);
    bytes_add_zeros(out, 8);
    uint32_t end = 0;
    bytes_add_le(out, end, 4);
    for (unsigned i = 0; i < names; i++)
        bytes_add_le(out, end += topic_of(job, first + i)->length, 4);
    pad(out, body);
    for (unsigned i = 0; i < names; i++)
        bytes_add(out, topic_of(job, first + i)->name, topic_of(job, first + i)->length);
    pad(out, body);
    for (unsigned i = 0; i < count; i++)
        bytes_add_le(out, i % names, 4);
    pad(out, body);
}

static void add_payloads(struct bytes *out, size_t body, const struct job *job, uint64_t first, unsigned count)
{
    for (unsigned i = 0; i <= count; i++)
        bytes_add_le(out, (uint64_t)i * job->message_bytes, 4);
    pad(out, body);
    for (unsigned i = 0; i < count; i++)
        message_add(out, first + i, job->message_bytes);
    pad(out, body);
}

void batch_add(struct bytes *out, const struct job *job, uint64_t first, unsigned count)
{
    size_t body = bytes_waiting(out);
    add_topics(out, body, job, first, count);
    uint64_t now_us = wall_us();
    for (unsigned i = 0; i < count; i++)
        bytes_add_le(out, now_us, 8);
    add_payloads(out, body, job, first, count);
}

/* Passes over the columns to the payloads, of bodies such as `batch_add` makes: nothing here publishes others. */
void batch_take(struct line *line, const uint8_t *body, size_t length, uint32_t count)
{
    uint32_t names = (uint32_t)get_le(body + 4, 4);
    if (get_le(body, 4) != count || get_le(body + 8, 4) != 0)
        fail("%s got a batch that is not what was published", line_name(line));
    size_t at = 16 + (size_t)names * 4;
    if (at + 4 > length)
        fail("%s got a batch that is cut", line_name(line));
    size_t name_bytes = get_le(body + at, 4);
    at += 4 + padding(at + 4);
    at += name_bytes + padding(at + name_bytes);
    at += (size_t)count * 4 + padding((size_t)count * 4) + (size_t)count * 8;
    const uint8_t *offsets = body + at;
    at += ((size_t)count + 1) * 4;
    at += padding(at);
    if (at > length || at + get_le(offsets + (size_t)count * 4, 4) > length)
        fail("%s got a batch that is cut", line_name(line));
    for (uint32_t i = 0; i < count; i++) {
        size_t begin = get_le(offsets + (size_t)i * 4, 4), end = get_le(offsets + (size_t)(i + 1) * 4, 4);
        if (begin > end || at + end > length)
            fail("%s got a batch whose offsets decrease", line_name(line));
        line_delivered(line, body + at + begin, end - begin);
    }
}
