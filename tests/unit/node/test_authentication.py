"""Checks of passwords in a thread: order, bounds, end."""

import queue
import threading
from collections.abc import Callable, Iterator

import pytest

from tailrace.model.security.scram import ScramCredential, ScramMechanism, credential_of_password
from tailrace.node import authentication
from tailrace.node.authentication import PasswordThread

RIGHT = credential_of_password(ScramMechanism.SHA_256, b"secret", salt=b"s" * 16, iterations=4_096)


class Gated(ScramCredential):
    """A credential whose checks wait for the test."""

    has_begun = threading.Event()
    may_go_on = threading.Event()

    def proves(self, password: bytes) -> bool:
        self.has_begun.set()
        assert self.may_go_on.wait(30)
        return super().proves(password)


GATED = Gated(
    mechanism=RIGHT.mechanism,
    iterations=RIGHT.iterations,
    salt=RIGHT.salt,
    stored_key=RIGHT.stored_key,
    server_key=RIGHT.server_key,
)


class Posted:
    """The outcomes, in the order in which the thread posts them."""

    def __init__(self) -> None:
        self.calls: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self.outcomes: list[tuple[str, bool]] = []

    def keep(self, name: str) -> Callable[[bool], None]:
        return lambda is_right: self.outcomes.append((name, is_right))

    def run(self, count: int) -> list[tuple[str, bool]]:
        for _ in range(count):
            self.calls.get(timeout=30)()
        return self.outcomes


@pytest.fixture
def posted() -> Posted:
    return Posted()


@pytest.fixture
def thread(posted: Posted) -> Iterator[PasswordThread]:
    Gated.may_go_on.clear()
    Gated.has_begun.clear()
    checks = PasswordThread(posted.calls.put)
    yield checks
    Gated.may_go_on.set()
    checks.stop()


def test_a_password_is_right_or_wrong(thread: PasswordThread, posted: Posted) -> None:
    thread.check("a", RIGHT, b"secret", posted.keep("right"))
    thread.check("a", RIGHT, b"Secret", posted.keep("wrong"))
    assert posted.run(2) == [("right", True), ("wrong", False)]


def test_an_address_with_many_checks_waits_behind_other_addresses(thread: PasswordThread, posted: Posted) -> None:
    for address, name in (("a", "a1"), ("a", "a2"), ("a", "a3"), ("b", "b1"), ("c", "c1")):
        thread.check(address, GATED, b"secret", posted.keep(name))
    Gated.may_go_on.set()
    order = [name for name, _ in posted.run(5)]
    assert order.index("b1") < order.index("a3")
    assert order.index("c1") < order.index("a3")
    assert order[0] == "a1"


def test_a_check_beyond_the_bound_fails_at_once(
    thread: PasswordThread, posted: Posted, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(authentication, "MOST_WAITING", 2)
    for number in range(4):  # the thread has taken at most one
        thread.check("a", GATED, b"secret", posted.keep(str(number)))
    assert posted.run(1) == [("3", False)] or posted.outcomes == [("2", False)]
    Gated.may_go_on.set()


def test_a_full_queue_takes_the_place_of_the_address_with_the_most_checks(
    thread: PasswordThread, posted: Posted, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An address that fills the queue locks no other address out."""
    monkeypatch.setattr(authentication, "MOST_WAITING", 4)
    thread.check("a", GATED, b"secret", posted.keep("a1"))
    assert Gated.has_begun.wait(30)
    for name in ("a2", "a3", "a4", "a5", "b1", "b2", "b3"):
        thread.check(name[0], GATED, b"secret", posted.keep(name))
    assert sorted(posted.run(3)) == [("a4", False), ("a5", False), ("b3", False)]
    Gated.may_go_on.set()
    assert {name for name, is_right in posted.run(5) if is_right} == {"a1", "a2", "a3", "b1", "b2"}


def test_a_stopped_thread_reports_nothing(posted: Posted) -> None:
    checks = PasswordThread(posted.calls.put)
    checks.check("a", RIGHT, b"secret", posted.keep("a"))
    assert posted.run(1) == [("a", True)]
    checks.stop()
    checks.check("a", RIGHT, b"secret", posted.keep("late"))
    assert posted.run(1)[-1] == ("late", False)
