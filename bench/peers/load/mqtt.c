/*
 * MQTT 3.1.1. Live subscribers and their publishers have the QoS of --qos, 0 unless told otherwise; where acks are the
 * point it is 1 unless told otherwise. A durable subscription is a session that is not clean.
 */
#include <stdio.h>
#include <stdlib.h>

#include "failure.h"
#include "messages.h"
#include "protocol.h"

enum packet {
    CONNECT = 0x10,
    CONNACK = 0x20,
    PUBLISH = 0x30,
    PUBACK = 0x40,
    PUBREC = 0x50,
    PUBREL = 0x62,
    PUBCOMP = 0x70,
    SUBSCRIBE = 0x82,
    SUBACK = 0x90,
    DISCONNECT = 0xe0,
};

enum { KEEPALIVE_S = 0, NUMBERED_BYTES = 4 };

/* Encoding */

static void add_length(struct bytes *out, size_t length)
{
    for (; length > 127; length >>= 7)
        bytes_add_u8(out, (uint8_t)(length & 127) | 128);
    bytes_add_u8(out, (uint8_t)length);
}

static void add_string(struct bytes *out, const char *text)
{
    bytes_add_be(out, strlen(text), 2);
    bytes_add_text(out, text);
}

/* PUBACK and its like: only the number of a message. */
static void add_numbered(struct bytes *out, enum packet packet, uint32_t number)
{
    uint8_t *to = bytes_room(out, NUMBERED_BYTES);
    to[0] = (uint8_t)packet;
    to[1] = 2;
    put_be(to + 2, number, 2);
    bytes_grow(out, NUMBERED_BYTES);
}

static void publish(struct line *line, uint64_t first, unsigned count)
{
    const struct job *job = line->job;
    struct bytes *out = &line->out;
    for (uint64_t number = first; number < first + count; number++) {
        const struct topic *topic = topic_of(job, number);
        bytes_add_u8(out, (uint8_t)(PUBLISH | job->qos << 1));
        add_length(out, 2 + topic->length + (job->qos ? 2 : 0) + job->message_bytes);
        bytes_add_be(out, topic->length, 2);
        bytes_add(out, topic->name, topic->length);
        if (job->qos)
            bytes_add_be(out, pending_add(&line->pending, 1), 2);
        message_add(out, number, job->message_bytes);
    }
}

/* Decoding */

/* The size of the fixed header, and of what follows; 0 if it is not all there yet. */
static size_t header(const uint8_t *data, size_t length, size_t *rest)
{
    *rest = 0;
    for (size_t i = 1; i < 5 && i < length; i++) {
        *rest |= (size_t)(data[i] & 127) << (7 * (i - 1));
        if (data[i] < 128)
            return i + 1;
    }
    if (length >= 5)
        fail("the broker sent a packet whose length has more than four bytes");
    return 0;
}

static void take_publish(struct line *line, uint8_t first_byte, const uint8_t *data, size_t length)
{
    unsigned qos = first_byte >> 1 & 3;
    size_t before = 2 + get_be(data, 2) + (qos ? 2 : 0);
    if (before > length)
        fail("the broker sent a PUBLISH that is shorter than its topic");
    line_delivered(line, data + before, length - before);
    if (qos == 1)
        line->settled++;
    if (qos)
        add_numbered(&line->out, qos == 1 ? PUBACK : PUBREC, (uint32_t)get_be(data + before - 2, 2));
}

static void take_packet(struct line *line, uint8_t first_byte, const uint8_t *data, size_t length)
{
    if ((first_byte & 0xf0) == PUBLISH) {
        take_publish(line, first_byte, data, length);
        return;
    }
    if (length < 2)
        fail("the broker sent %s a packet 0x%02x that does not belong here", line_name(line), first_byte);
    uint32_t number = (uint32_t)get_be(data, 2);
    switch (first_byte) {
    case PUBACK:
    case PUBCOMP:
        line->acked += pending_take(&line->pending, number);
        break;
    case PUBREC:
        add_numbered(&line->out, PUBREL, number);
        break;
    case PUBREL:
        add_numbered(&line->out, PUBCOMP, number);
        line->settled++;
        break;
    default:
        fail("the broker sent %s a packet 0x%02x that does not belong here", line_name(line), first_byte);
    }
}

static size_t take(struct line *line, const uint8_t *data, size_t length)
{
    size_t used = 0, rest, head;
    while ((head = header(data + used, length - used, &rest)) && length - used >= head + rest) {
        take_packet(line, data[used], data + used + head, rest);
        used += head + rest;
    }
    return used;
}

/* Handshakes */

static void greet(struct line *line, const char *client, bool is_clean)
{
    struct bytes *out = &line->out;
    bytes_add_u8(out, CONNECT);
    add_length(out, 10 + 2 + strlen(client));
    add_string(out, "MQTT");
    bytes_add_u8(out, 4);
    bytes_add_u8(out, is_clean ? 2 : 0);
    bytes_add_be(out, KEEPALIVE_S, 2);
    add_string(out, client);
    line_send(line);
    const uint8_t *answer = line_need(line, 4);
    if (answer[0] != CONNACK)
        fail("what listens at port %u does not answer as an MQTT broker does", line->job->port);
    if (answer[3] != 0)
        fail("the broker refused %s with return code %u", line_name(line), answer[3]);
    bytes_drop(&line->in, 4);
}

static void subscribe(struct line *line, const char *filter)
{
    struct bytes *out = &line->out;
    bytes_add_u8(out, SUBSCRIBE);
    add_length(out, 2 + 2 + strlen(filter) + 1);
    bytes_add_be(out, 1, 2);
    add_string(out, filter);
    bytes_add_u8(out, (uint8_t)line->job->qos);
    line_send(line);
    const uint8_t *answer = line_need(line, 5);
    if (answer[0] != SUBACK || answer[4] != line->job->qos)
        fail("the broker did not grant %s its subscription to %s with QoS %u", line_name(line), filter,
             line->job->qos);
    bytes_drop(&line->in, 5);
}

static void client_id(char *to, size_t capacity, const struct job *job, enum role role, unsigned place)
{
    snprintf(to, capacity, "load-%s-%d-%u", job->run, role, place);
}

static void leave(struct line *line)
{
    bytes_add(&line->out, (uint8_t[]){DISCONNECT, 0}, 2);
    line_send(line);
    line_close(line);
}

static void declare(const struct job *job, unsigned place)
{
    struct line line;
    char client[64], filter[64];
    line_connect(&line, job, &MQTT, DURABLE, place);
    client_id(client, sizeof client, job, DURABLE, place);
    greet(&line, client, false);
    snprintf(filter, sizeof filter, "%s/#", job->name);
    subscribe(&line, filter);
    leave(&line);
}

/* A clean session takes the place of the one that was not, and ends with its connection. */
static void withdraw(const struct job *job, unsigned place)
{
    struct line line;
    char client[64];
    line_connect(&line, job, &MQTT, DURABLE, place);
    client_id(client, sizeof client, job, DURABLE, place);
    greet(&line, client, true);
    leave(&line);
}

static void open_line(struct line *line)
{
    char client[64], filter[64];
    client_id(client, sizeof client, line->job, line->role, line->place);
    greet(line, client, line->role != DURABLE);
    if (line->role == LIVE)
        snprintf(filter, sizeof filter, "%s/#", line->job->name);
    else
        snprintf(filter, sizeof filter, "%s/idle/%u", line->job->name, line->place);
    if (line->role == LIVE || line->role == IDLE)
        subscribe(line, filter);
}

const struct protocol MQTT = {
    .name = "mqtt",
    .separator = '/',
    .can = CAN_STORE | CAN_FAN_OUT | CAN_DELIVER | CAN_KEEP,
    .declare = declare,
    .withdraw = withdraw,
    .open = open_line,
    .publish = publish,
    .take = take,
};
