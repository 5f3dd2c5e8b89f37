"""A receiver that counts bytes and does nothing else: in C where there is a compiler, else in Python.

It takes over connections on which the handshake was made, gives credit back as it receives, and says, each time that
it reads a line, how many bytes it has by then. With a compiler bytes are dropped inside the kernel (MSG_TRUNC), so that
what is measured is the broker. This module is also the process in Python:
`python -m headwater.cli.bench.served.counter DESCRIPTOR…`.
"""

from __future__ import annotations

import selectors
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from headwater.cli.bench.served.raw import CREDIT_BYTES, CREDIT_MESSAGES, READ_BYTES
from headwater.store.files import DiskFiles
from headwater.wire.batches import pack_credit

SUBSCRIPTION = 1
CREDIT_AFTER_BYTES = 64 * 1024 * 1024

SOURCE = """
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

static const unsigned char credit[] = {%(credit)s};

int main(int argc, char **argv) {
    unsigned long long total = 0, *since = calloc(65536, sizeof *since);
    char *buffer = malloc(1 << 20), line[64];
    struct epoll_event event = {.events = EPOLLIN}, ready[64];
    int poll = epoll_create1(0);
    for (int i = 1; i < argc; i++) {
        event.data.fd = atoi(argv[i]);
        epoll_ctl(poll, EPOLL_CTL_ADD, event.data.fd, &event);
    }
    event.data.fd = 0;
    epoll_ctl(poll, EPOLL_CTL_ADD, 0, &event);
    for (;;) {
        int count = epoll_wait(poll, ready, 64, -1);
        for (int i = 0; i < count; i++) {
            int fd = ready[i].data.fd;
            if (fd == 0) {
                if (read(0, line, sizeof line) <= 0) return 0;
                printf("%%llu\\n", total);
                fflush(stdout);
                continue;
            }
            ssize_t got = recv(fd, buffer, 8 << 20, MSG_TRUNC | MSG_DONTWAIT);
            if (got == 0) return 1;
            if (got < 0) continue;
            total += got;
            since[fd] += got;
            if (since[fd] >= %(after)d) {
                since[fd] = 0;
                if (write(fd, credit, sizeof credit) < 0) return 1;
            }
        }
    }
}
"""


class Counter:
    """A process that counts."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def bytes(self) -> int:
        """What it has received by now, over all connections."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write("?\n")
        self._process.stdin.flush()
        return int(self._process.stdout.readline())


@contextmanager
def counting(folder: str, connections: Sequence[socket.socket]) -> Iterator[Counter]:
    """Have a process of its own receive on these."""
    numbers = [connection.fileno() for connection in connections]
    program = _compiled(folder)
    command = [program] if program else [sys.executable, "-m", "headwater.cli.bench.served.counter"]
    with subprocess.Popen(  # noqa: S603  (our own program)
        [*command, *map(str, numbers)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, pass_fds=numbers
    ) as process:
        yield Counter(process)
        assert process.stdin is not None
        process.stdin.close()


def _credit() -> bytes:
    return pack_credit(SUBSCRIPTION, CREDIT_MESSAGES, CREDIT_BYTES)


def _compiled(folder: str) -> str | None:
    """The program, made on the spot; None without a compiler, or where the kernel cannot drop bytes."""
    compiler = shutil.which("cc")
    if compiler is None or sys.platform != "linux":
        return None
    files, source, program = DiskFiles(), f"{folder}/counter.c", f"{folder}/counter"
    if not files.exists(program):
        text = SOURCE % {"credit": ", ".join(map(str, _credit())), "after": CREDIT_AFTER_BYTES}
        files.write(source, text.encode())
        made = subprocess.run([compiler, "-O2", "-o", program, source], check=False, capture_output=True)  # noqa: S603  (our own text)
        if made.returncode:
            return None
    return program


def _count(numbers: list[int]) -> None:
    selector = selectors.DefaultSelector()
    selector.register(sys.stdin, selectors.EVENT_READ)
    for number in numbers:
        connection = socket.socket(fileno=number)
        connection.setblocking(False)
        selector.register(connection, selectors.EVENT_READ, [0])
    buffer, total, credit = bytearray(READ_BYTES), 0, _credit()
    while True:
        for key, _ in selector.select():
            if not isinstance(key.fileobj, socket.socket):
                if not sys.stdin.readline():
                    return
                print(total, flush=True)
                continue
            received = key.fileobj.recv_into(buffer)
            if not received:
                return
            total += received
            key.data[0] += received
            if key.data[0] >= CREDIT_AFTER_BYTES:
                key.data[0] = 0
                key.fileobj.sendall(credit)


if __name__ == "__main__":
    _count(list(map(int, sys.argv[1:])))
