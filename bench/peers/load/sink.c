/*
 * A sink: what the generator can do when nobody else has to do anything. Its broker is a child of this process, which
 * counts bytes and passes them on; with --port, whoever listens there. All messages have one size, so there is nothing
 * to understand:
 *
 *     publisher    'A', then messages; gets back how many have come, as u32, from time to time
 *                  'Q', then messages; gets nothing back
 *     subscriber   'S', which is answered with 'S'; then gets messages
 *
 * Durable subscribers send a byte for each message, which the child reads and forgets.
 */
#include <errno.h>
#include <netinet/in.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include "failure.h"
#include "messages.h"
#include "protocol.h"

enum { ACK_BYTES = 4, READ_BYTES = 256 * 1024, GUESTS_MAX = 1024 };

/* The broker */

struct guest {
    char role; /* 0: has not said */
    struct bytes in;
};

static struct guest guests[GUESTS_MAX];
static struct pollfd watched[GUESTS_MAX];
static unsigned guest_count;

static void send_all(int fd, const uint8_t *data, size_t length)
{
    while (length) {
        ssize_t sent = send(fd, data, length, MSG_NOSIGNAL);
        if (sent <= 0)
            return; /* the guest is gone, and will be missed by the generator alone */
        data += sent;
        length -= (size_t)sent;
    }
}

static void pass_on(const uint8_t *data, size_t length)
{
    for (unsigned i = 1; i < guest_count; i++)
        if (guests[i].role == 'S')
            send_all(watched[i].fd, data, length);
}

static void take_messages(struct guest *guest, int fd, size_t message_bytes)
{
    size_t count = bytes_waiting(&guest->in) / message_bytes;
    if (!count)
        return;
    pass_on(bytes_first(&guest->in), count * message_bytes);
    if (guest->role == 'A') {
        uint8_t ack[ACK_BYTES];
        put_le(ack, count, ACK_BYTES);
        send_all(fd, ack, sizeof ack);
    }
    bytes_drop(&guest->in, count * message_bytes);
}

static void serve_guest(struct guest *guest, struct pollfd *watch, size_t message_bytes)
{
    ssize_t count = recv(watch->fd, bytes_room(&guest->in, READ_BYTES), READ_BYTES, 0);
    if (count <= 0) {
        close(watch->fd);
        watch->fd = -1; /* which poll passes over */
        guest->role = 0;
        return;
    }
    bytes_grow(&guest->in, (size_t)count);
    if (!guest->role) {
        guest->role = (char)*bytes_first(&guest->in);
        bytes_drop(&guest->in, 1);
        if (guest->role == 'S')
            send_all(watch->fd, (const uint8_t *)"S", 1);
    }
    if (guest->role == 'S')
        bytes_drop(&guest->in, bytes_waiting(&guest->in));
    else
        take_messages(guest, watch->fd, message_bytes);
}

static _Noreturn void serve(int listener, size_t message_bytes)
{
    prctl(PR_SET_PDEATHSIG, SIGKILL); /* never outlives the generator */
    watched[guest_count++] = (struct pollfd){.fd = listener, .events = POLLIN};
    for (;;) {
        poll(watched, guest_count, -1);
        unsigned count = guest_count;
        if (watched[0].revents && guest_count < GUESTS_MAX)
            watched[guest_count++] = (struct pollfd){.fd = accept(listener, NULL, NULL), .events = POLLIN};
        for (unsigned i = 1; i < count; i++)
            if (watched[i].revents)
                serve_guest(&guests[i], &watched[i], message_bytes);
    }
}

static void begin(struct job *job)
{
    if (job->port)
        return;
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t length = sizeof address;
    int listener = socket(AF_INET, SOCK_STREAM, 0);
    if (listener < 0 || bind(listener, (struct sockaddr *)&address, length) < 0 || listen(listener, 128) < 0 ||
        getsockname(listener, (struct sockaddr *)&address, &length) < 0)
        fail("the sink cannot listen: %s", strerror(errno));
    job->port = ntohs(address.sin_port);
    pid_t child = fork();
    if (child < 0)
        fail("the sink cannot be started: %s", strerror(errno));
    if (child == 0)
        serve(listener, job->message_bytes);
    close(listener);
}

/* The client */

/* Nothing is kept, and so there is nothing to declare. */
static void nothing(const struct job *job, unsigned place)
{
    (void)job;
    (void)place;
}

static void open_line(struct line *line)
{
    bool is_publisher = line->role == PUBLISHER;
    bytes_add_u8(&line->out, is_publisher ? (line->is_acked ? 'A' : 'Q') : 'S');
    line_send(line);
    if (is_publisher)
        return;
    line_need(line, 1);
    bytes_drop(&line->in, 1);
}

static void publish(struct line *line, uint64_t first, unsigned count)
{
    for (uint64_t number = first; number < first + count; number++)
        message_add(&line->out, number, line->job->message_bytes);
}

static size_t take_acks(struct line *line, const uint8_t *data, size_t length)
{
    size_t used = 0;
    for (; length - used >= ACK_BYTES; used += ACK_BYTES)
        line->acked += get_le(data + used, ACK_BYTES);
    if (line->acked > line->sent)
        fail("the sink acked more than %s has sent: a doubled or wrong ack", line_name(line));
    return used;
}

static size_t take(struct line *line, const uint8_t *data, size_t length)
{
    if (line->role == PUBLISHER)
        return take_acks(line, data, length);
    size_t message_bytes = line->job->message_bytes, count = length / message_bytes;
    for (size_t i = 0; i < count; i++)
        line_delivered(line, data + i * message_bytes, message_bytes);
    if (line->role == DURABLE) {
        bytes_add_zeros(&line->out, count);
        line->settled += count;
    }
    return count * message_bytes;
}

const struct protocol SINK = {
    .name = "sink",
    .separator = '/',
    .can = CAN_STORE | CAN_FAN_OUT | CAN_DELIVER,
    .begin = begin,
    .declare = nothing,
    .withdraw = nothing,
    .open = open_line,
    .publish = publish,
    .take = take,
};
