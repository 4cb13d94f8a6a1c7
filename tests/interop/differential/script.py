"""The language of request scripts: steps that go to two nodes in the same order.

A script is an iterable of steps. A request that needs something a node has chosen (a topic id, a member id) is built
from that node's earlier answers; every other request is the same for both, byte for byte.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from tailrace.protocol.registry import api_of

CLIENT_ID = "script"


class Answers(dict[str, Any]):
    """A node's answers so far, by the name of the step, and the ids that it has given to topics."""

    def __init__(self) -> None:
        super().__init__()
        self.topic_ids: dict[str, bytes] = {}


Build = Callable[[Answers], Any]
Condition = Callable[[Any], bool]


@dataclass(frozen=True)
class Ask:
    """Sends a request and compares the answers.

    `connection`: by name; what stands behind an `@` is the number of the broker, without which it is the
    first broker, or `controller`.
    `is_repeatable` is false for a read that changes what the next read gets, as reads of a fetch session do.
    `until`: asked again until the answer satisfies this condition, as Kafka does what it has promised a moment later.
    `is_compared` is false for what a script prepares in ways of its own at each node.
    `expect_answer` is false for a Produce with acks=0: the connection's next step shows whether it is open still.
    """

    name: str
    version: int
    build: Build
    connection: str = "main"
    until: Condition | None = None
    expect_answer: bool = True
    is_repeatable: bool = True
    is_compared: bool = True


@dataclass(frozen=True)
class Send:
    """Sends a request that waits in the node, for instance a JoinGroup; `Receive` of the same name compares."""

    name: str
    version: int
    build: Build
    connection: str


@dataclass(frozen=True)
class Receive:
    """Takes the answers to what `Send` has sent, and compares the answers."""

    name: str


@dataclass(frozen=True)
class SendBytes:
    """Sends a frame as it is. Compared is whether an answer comes or the connection closes, and the answer's bytes."""

    name: str
    payload: bytes
    connection: str = "bytes"


@dataclass(frozen=True)
class Repeat:
    """Sends these requests of one API so many times, one round after the other, and compares the last answers.

    The name of a request is that of its last answer; no request may depend on another one's answer.
    """

    builds: Mapping[str, Build]
    version: int
    times: int
    connection: str = "main"


@dataclass(frozen=True)
class Hangup:
    """Closes a connection."""

    connection: str


Step = Ask | Send | Receive | SendBytes | Repeat | Hangup
Script = Iterable[Step]


def ask(
    name: str,
    request: Any,
    *versions: int,
    until: Condition | None = None,
    connection: str = "main",
    expect_answer: bool = True,
    is_repeatable: bool = True,
    is_compared: bool = True,
) -> Iterator[Ask]:
    """The same request in each of these versions; by default in the newest. `request`: a message or its builder."""
    build = request if callable(request) else (lambda _: request)
    for version in versions or (_newest(request),):
        yield Ask(name, version, build, connection, until, expect_answer, is_repeatable, is_compared)


def _newest(request: Any) -> int:
    assert not callable(request), "a request that is built needs its versions stated"
    return api_of(type(request)).max_version


def every_version(request_type: type[Any]) -> range:
    """The versions of an API that are served."""
    api = api_of(request_type)
    return range(api.min_version, api.max_version + 1)


def key_versions(request_type: type[Any]) -> tuple[int, ...]:
    """The first, the middle and the last version of an API."""
    served = every_version(request_type)
    return tuple(sorted({served[0], served[len(served) // 2], served[-1]}))
