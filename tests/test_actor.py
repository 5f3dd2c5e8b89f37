"""Actors: one message after another, bounded mailboxes, deadlines, supervision, and work at a offload."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from headwater.actor import Actor, Answer, Offload
from headwater.errors import Malformed, QuotaExceeded, TimedOut


class Boss:
    def __init__(self) -> None:
        self.failures: list[tuple[Actor, Exception]] = []

    def on_failure(self, actor: Actor, error: Exception) -> None:
        self.failures.append((actor, error))


class Diary(Actor):
    """Notes what it is told; a callable is called in the middle of it."""

    __slots__ = ("seen",)

    def __init__(self, boss: Boss, mail_max: int = 10) -> None:
        super().__init__(boss, mail_max)
        self.seen: list[tuple[str, Any]] = []

    def receive(self, message: Any) -> None:
        self.seen.append(("begin", message))
        if callable(message):
            message()
        self.seen.append(("end", message))


def test_an_idle_actor_handles_a_message_at_once():
    diary = Diary(Boss())
    diary.tell(1)
    assert diary.seen == [("begin", 1), ("end", 1)]


def test_a_busy_actor_finds_messages_in_its_mailbox_and_handles_them_in_order_one_after_another():
    diary = Diary(Boss())

    def busy() -> None:
        for number in (1, 2, 3):
            diary.tell(number)
        assert diary.seen == [("begin", busy)]

    diary.tell(busy)
    assert diary.seen == [("begin", busy), ("end", busy), *[(w, n) for n in (1, 2, 3) for w in ("begin", "end")]]


def test_mail_that_comes_while_mail_is_handled_comes_after_it():
    diary = Diary(Boss())

    def busy() -> None:
        diary.tell(lambda: diary.tell("third"))
        diary.tell("second")

    diary.tell(busy)
    assert [message for word, message in diary.seen if word == "end" and isinstance(message, str)] == [
        "second",
        "third",
    ]


def test_a_full_mailbox_refuses_with_429_and_goes_on():
    diary = Diary(Boss(), mail_max=2)
    refused: list[Exception] = []

    def busy() -> None:
        for number in range(4):
            try:
                diary.tell(number)
            except QuotaExceeded as error:
                refused.append(error)

    diary.tell(busy)
    assert len(refused) == 2
    assert "Diary has 2 messages waiting" in str(refused[0])
    assert [message for word, message in diary.seen if word == "end"] == [busy, 0, 1]
    diary.tell("more")
    assert diary.seen[-1] == ("end", "more")


def test_an_actor_that_fails_is_handed_to_its_supervisor_and_handles_the_next_message():
    boss = Boss()
    diary = Diary(boss)

    def fail() -> None:
        diary.tell("after")
        raise ZeroDivisionError

    diary.tell(fail)
    assert [(actor, type(error)) for actor, error in boss.failures] == [(diary, ZeroDivisionError)]
    assert diary.seen[-1] == ("end", "after")


def test_a_supervisor_that_raises_hands_the_error_to_who_told_and_the_actor_goes_on():
    class Strict(Boss):
        def on_failure(self, actor: Actor, error: Exception) -> None:
            raise error

    diary = Diary(Strict())

    def fail() -> None:
        raise Malformed("no")

    with pytest.raises(Malformed):
        diary.tell(fail)
    diary.tell(1)
    assert diary.seen[-1] == ("end", 1)


def test_mail_behind_a_message_that_failed_so_is_not_lost():
    class Strict(Boss):
        def on_failure(self, actor: Actor, error: Exception) -> None:
            raise error

    diary = Diary(Strict())

    def fail() -> None:
        raise Malformed("no")

    def busy() -> None:
        diary.tell(fail)
        diary.tell("behind")

    with pytest.raises(Malformed):
        diary.tell(busy)
    diary.tell("next")
    assert [message for word, message in diary.seen if word == "end" and isinstance(message, str)] == [
        "behind",
        "next",
    ]


# Answers


def test_the_first_answer_counts_and_what_is_late_is_dropped():
    async def story() -> None:
        got: list[object] = []
        loop = asyncio.get_running_loop()
        answer = Answer(lambda value, error: got.append((value, error)), loop, 10, "it")
        answer(1, None)
        answer(2, None)
        answer(None, ValueError())
        assert got == [(1, None)]

    asyncio.run(story())


def test_without_an_answer_by_its_deadline_a_call_has_timed_out():
    async def story() -> None:
        done: asyncio.Future[object] = asyncio.get_running_loop().create_future()
        Answer(lambda _, error: done.set_result(error), asyncio.get_running_loop(), 0.01, "the root")
        error = await asyncio.wait_for(done, 60)
        assert isinstance(error, TimedOut)
        assert "the root did not answer within 0.01 s" in str(error)

    asyncio.run(story())


def test_an_error_is_an_answer_too():
    async def story() -> None:
        got: list[object] = []
        error = Malformed("no")
        Answer(lambda *both: got.append(both), asyncio.get_running_loop(), 10, "it")(None, error)
        assert got == [(None, error)]

    asyncio.run(story())


# Desks


def test_a_desk_does_one_piece_after_the_other_in_the_order_in_which_they_were_given():
    async def story() -> None:
        loop, done = asyncio.get_running_loop(), asyncio.Event()
        order: list[object] = []
        at_once = threading.Semaphore(1)

        def work(number: int) -> int:
            assert at_once.acquire(blocking=False)
            order.append(number)
            at_once.release()
            return number

        with ThreadPoolExecutor(4) as executor:
            offload = Offload(loop, executor)
            answers: list[object] = []
            for number in range(50):
                offload.do(lambda number=number: work(number), lambda value, error: answers.append((value, error)))  # type: ignore[misc]
            offload.do(lambda: None, lambda *_: done.set())
            await asyncio.wait_for(done.wait(), 60)
        assert order == list(range(50))
        assert answers == [(number, None) for number in range(50)]

    asyncio.run(story())


def test_work_that_fails_is_told_and_the_next_is_done():
    async def story() -> None:
        loop, done = asyncio.get_running_loop(), asyncio.Event()
        got: list[object] = []
        with ThreadPoolExecutor(1) as executor:
            offload = Offload(loop, executor)
            offload.do(lambda: 1 // 0, lambda _, error: got.append(type(error)))
            offload.do(lambda: 2, lambda value, _: got.append(value))
            offload.do(lambda: 3, lambda *_: done.set())
            await asyncio.wait_for(done.wait(), 60)
        assert got == [ZeroDivisionError, 2]

    asyncio.run(story())


def test_whoever_fails_at_an_answer_does_not_stop_the_desk():
    async def story() -> None:
        loop, done = asyncio.get_running_loop(), asyncio.Event()
        troubles: list[object] = []

        def fail(*_: object) -> None:
            raise ZeroDivisionError

        loop.set_exception_handler(lambda _, context: troubles.append(context["exception"]))
        with ThreadPoolExecutor(1) as executor:
            offload = Offload(loop, executor)
            offload.do(lambda: 1, fail)
            offload.do(lambda: 2, lambda *_: done.set())
            await asyncio.wait_for(done.wait(), 60)
        assert [type(error) for error in troubles] == [ZeroDivisionError]

    asyncio.run(story())


def test_a_desk_whose_threads_are_gone_drops_its_work_without_a_word():
    async def story() -> None:
        executor = ThreadPoolExecutor(1)
        executor.shutdown()
        offload = Offload(asyncio.get_running_loop(), executor)
        offload.do(lambda: 1, lambda *_: pytest.fail("nobody can have done it"))
        offload.do(lambda: 2, lambda *_: pytest.fail("nobody can have done it"))
        await asyncio.sleep(0)

    asyncio.run(story())
