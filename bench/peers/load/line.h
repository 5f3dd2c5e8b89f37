#pragma once

#include <stdbool.h>
#include <sys/types.h>

#include "bytes.h"
#include "job.h"
#include "ledger.h"

struct protocol;

enum role {
    CONTROL,   /* makes and removes what the work needs */
    PUBLISHER, /* is answered once a message is safe, if `is_acked` */
    LIVE,      /* gets what comes from now on */
    DURABLE,   /* gets what comes since its subscription was made, and acks it */
    REPLAY,    /* gets what is stored, from the start */
    IDLE,      /* has a filter of its own, to which nothing comes */
};

/* A connection to the broker, what waits to be sent and understood, and what has come of it so far. */
struct line {
    const struct job *job;
    const struct protocol *protocol;
    enum role role;
    unsigned place; /* among those of its role */
    bool is_acked;

    int fd;
    bool is_blocked; /* waits until the socket takes more */
    struct bytes in, out;

    uint64_t sent;      /* published */
    uint64_t acked;     /* of these, answered by the broker */
    uint64_t delivered; /* received */
    uint64_t settled;   /* of these, acked; confirmed by the broker where the protocol has that */
    struct pending pending;
    struct seen seen;
    void *state; /* the protocol's own */
};

void line_connect(struct line *line, const struct job *job, const struct protocol *protocol, enum role role,
                  unsigned place);
void line_close(struct line *line);

/* Sends as much as the socket takes at once. */
void line_flush(struct line *line);
/* Reads what there is; fails if the broker has closed the connection. */
void line_fill(struct line *line);

/* For handshakes, which are one thing after the other: send everything; have at least so many bytes. */
void line_send(struct line *line);
const uint8_t *line_need(struct line *line, size_t count);

/* What a protocol tells of: a message has come. Checks that it is whole and new. */
void line_delivered(struct line *line, const uint8_t *message, size_t length);

/* "publisher 3", for errors. */
const char *line_name(const struct line *line);

/* All lines of a work, watched together. */
struct lines {
    struct line *all;
    unsigned count, capacity;
    int epoll;
};

void lines_begin(struct lines *lines, unsigned capacity);
struct line *lines_open(struct lines *lines, const struct job *job, const struct protocol *protocol, enum role role,
                        unsigned place, bool is_acked);
void lines_flush(struct lines *lines);
/* Waits until something comes or may be sent, and handles it. */
void lines_wait(struct lines *lines, int timeout_ms);
/* Answers what must be answered, such as pings, until that input ends. */
void lines_hold(struct lines *lines, int input);
void lines_close(struct lines *lines);
