#include "line.h"

#include <errno.h>
#include <netdb.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "failure.h"
#include "messages.h"
#include "protocol.h"

enum {
    READ_BYTES = 256 * 1024,
    EVENTS_MAX = 256,
};

const char *line_name(const struct line *line)
{
    static const char *const ROLES[] = {"control", "publisher", "live subscriber", "durable subscriber", "replay",
                                        "idle subscriber"};
    static char name[40];
    snprintf(name, sizeof name, "%s %u", ROLES[line->role], line->place);
    return name;
}

/* Connecting */

static int connected(const struct addrinfo *address)
{
    int fd = socket(address->ai_family, address->ai_socktype | SOCK_CLOEXEC, address->ai_protocol);
    if (fd < 0)
        fail("no socket could be made: %s; raise the limit of open files", strerror(errno));
    if (connect(fd, address->ai_addr, address->ai_addrlen) == 0)
        return fd;
    close(fd);
    return -1;
}

static int connected_to(const struct job *job)
{
    char port[16];
    snprintf(port, sizeof port, "%u", job->port);
    struct addrinfo wanted = {.ai_socktype = SOCK_STREAM}, *found;
    int problem = getaddrinfo(job->host, port, &wanted, &found);
    if (problem)
        fail("%s is no address: %s", job->host, gai_strerror(problem));
    int fd = -1;
    for (struct addrinfo *one = found; one && fd < 0; one = one->ai_next)
        fd = connected(one);
    if (fd < 0)
        fail("nobody answers at %s port %u: %s", job->host, job->port, strerror(errno));
    freeaddrinfo(found);
    return fd;
}

void line_connect(struct line *line, const struct job *job, const struct protocol *protocol, enum role role,
                  unsigned place)
{
    *line = (struct line){.job = job, .protocol = protocol, .role = role, .place = place};
    line->fd = connected_to(job);
    int yes = 1;
    setsockopt(line->fd, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes);
}

void line_close(struct line *line)
{
    close(line->fd);
    bytes_free(&line->in);
    bytes_free(&line->out);
    free(line->pending.messages);
    free(line->seen.words);
    free(line->state);
}

/* Bytes */

void line_flush(struct line *line)
{
    while (bytes_waiting(&line->out)) {
        ssize_t sent = send(line->fd, bytes_first(&line->out), bytes_waiting(&line->out), MSG_DONTWAIT | MSG_NOSIGNAL);
        if (sent > 0)
            bytes_drop(&line->out, (size_t)sent);
        else if (errno == EAGAIN)
            return;
        else if (errno != EINTR)
            fail("%s could not send: %s", line_name(line), strerror(errno));
    }
}

void line_fill(struct line *line)
{
    uint8_t *room = bytes_room(&line->in, READ_BYTES);
    ssize_t count = recv(line->fd, room, line->in.capacity - line->in.end, MSG_DONTWAIT);
    if (count > 0)
        bytes_grow(&line->in, (size_t)count);
    else if (count == 0)
        fail("the broker closed the connection of %s", line_name(line));
    else if (errno != EAGAIN && errno != EINTR)
        fail("%s could not read: %s", line_name(line), strerror(errno));
}

static void wait_for(struct line *line, short events)
{
    struct pollfd wanted = {.fd = line->fd, .events = events};
    if (poll(&wanted, 1, (int)(line->job->timeout_s * 1000)) == 0)
        fail("the broker does not answer %s within %g s", line_name(line), line->job->timeout_s);
}

void line_send(struct line *line)
{
    for (line_flush(line); bytes_waiting(&line->out); line_flush(line))
        wait_for(line, POLLOUT);
}

const uint8_t *line_need(struct line *line, size_t count)
{
    while (bytes_waiting(&line->in) < count) {
        wait_for(line, POLLIN);
        line_fill(line);
    }
    return bytes_first(&line->in);
}

void line_delivered(struct line *line, const uint8_t *message, size_t length)
{
    if (length != line->job->message_bytes)
        fail("%s got a message of %zu bytes, where all have %u", line_name(line), length, line->job->message_bytes);
    seen_add(&line->seen, get_le(message, NUMBER_BYTES));
    line->delivered++;
}

/* All of them */

void lines_begin(struct lines *lines, unsigned capacity)
{
    *lines = (struct lines){.all = calloc(capacity, sizeof *lines->all), .capacity = capacity};
    lines->epoll = epoll_create1(EPOLL_CLOEXEC);
    if (!lines->all || lines->epoll < 0)
        fail("there is no room for %u connections", capacity);
}

static void take_in(struct line *line)
{
    size_t used = line->protocol->take(line, bytes_first(&line->in), bytes_waiting(&line->in));
    bytes_drop(&line->in, used);
}

struct line *lines_open(struct lines *lines, const struct job *job, const struct protocol *protocol, enum role role,
                        unsigned place, bool is_acked)
{
    struct line *line = &lines->all[lines->count++];
    line_connect(line, job, protocol, role, place);
    line->is_acked = is_acked;
    protocol->open(line);
    struct epoll_event event = {.events = EPOLLIN, .data.ptr = line};
    if (epoll_ctl(lines->epoll, EPOLL_CTL_ADD, line->fd, &event) < 0)
        fail("a connection cannot be watched: %s", strerror(errno));
    if (bytes_waiting(&line->in)) /* came together with the answer to the greeting; the kernel tells of it no more */
        take_in(line);
    return line;
}

/* The kernel is only asked to tell of room for more while something waits for it. */
static void watch_room(struct lines *lines, struct line *line)
{
    bool is_blocked = bytes_waiting(&line->out) > 0;
    if (is_blocked == line->is_blocked)
        return;
    line->is_blocked = is_blocked;
    struct epoll_event event = {.events = is_blocked ? EPOLLIN | EPOLLOUT : EPOLLIN, .data.ptr = line};
    epoll_ctl(lines->epoll, EPOLL_CTL_MOD, line->fd, &event);
}

static void flush(struct lines *lines, struct line *line)
{
    line_flush(line);
    watch_room(lines, line);
}

void lines_flush(struct lines *lines)
{
    for (unsigned i = 0; i < lines->count; i++)
        if (bytes_waiting(&lines->all[i].out) && !lines->all[i].is_blocked)
            flush(lines, &lines->all[i]);
}

static void handle(struct lines *lines, struct line *line, uint32_t events)
{
    if (events & ~(uint32_t)EPOLLOUT) {
        line_fill(line);
        take_in(line);
    }
    if (events & EPOLLOUT)
        flush(lines, line);
}

void lines_wait(struct lines *lines, int timeout_ms)
{
    struct epoll_event events[EVENTS_MAX];
    int count = epoll_wait(lines->epoll, events, EVENTS_MAX, timeout_ms);
    for (int i = 0; i < count; i++)
        handle(lines, events[i].data.ptr, events[i].events);
}

void lines_hold(struct lines *lines, int input)
{
    struct pollfd wanted[] = {{.fd = lines->epoll, .events = POLLIN}, {.fd = input, .events = POLLIN}};
    char ignored[256];
    for (;;) {
        poll(wanted, 2, -1);
        if (wanted[0].revents) {
            lines_wait(lines, 0);
            lines_flush(lines);
        }
        if (wanted[1].revents && read(input, ignored, sizeof ignored) <= 0)
            return;
    }
}

void lines_close(struct lines *lines)
{
    for (unsigned i = 0; i < lines->count; i++)
        line_close(&lines->all[i]);
    free(lines->all);
    close(lines->epoll);
}
