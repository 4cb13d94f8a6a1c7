"""Scripts of clients: a generator asks, waits for the answer and goes on, as a client's own code does."""

from collections.abc import Callable, Generator
from typing import Any, Final, NamedTuple, TypeVar

from simulation.replicas.requests import Link, ask
from simulation.transactions.brokers import TransactionBrokers
from tailrace.model.errors import ErrorCode
from tailrace.model.partitions import TopicPartition

T = TypeVar("T")

CLIENTS: Final = (1000, 1001, 1002)
"""The hosts of clients in the network."""
_TIMEOUT_MS: Final = 700
_RETRY_MS: Final = 100
_LATEST_MS: Final = (300, 3_000, 35_000)
_ONLY_LATE: Final = 0.3
"""The share of late requests that have not come earlier: they were on their way when their connection was given up."""

_LATE_SHARES: Final = {
    "ProduceRequest": 1.0,
    "TxnOffsetCommitRequest": 1.0,
    "EndTxnRequest": 1.0,
    "CommitSinkRequest": 1.0,
    # Each copy fences its own client.
    "InitProducerIdRequest": 0.1,
    "FetchRequest": 0.0,
    "OffsetFetchRequest": 0.0,
}
"""The share of the plan's rate at which requests come again late. A late request that only reads changes nothing."""


def _ignore(response: Any) -> None:
    """Check nothing when an answer leaves."""


class LeaderRequest(NamedTuple):
    """A request to the leader of a partition; the script goes on with the response, or with None."""

    leader_of: TopicPartition
    message: Any
    version: int
    is_ordered: bool = False
    """Whether the request comes once, and never after its client has given up, as on one connection."""
    on_leave: Callable[[Any], None] = _ignore
    """Called with each response in the step in which it leaves the broker."""


class Pause(NamedTuple):
    """A pause of the script, in ms."""

    ms: int


Step = LeaderRequest | Pause
Script = Generator[Step, Any, T]


def insist(
    request: LeaderRequest, code_of: Callable[[Any], int], *, tries: int | None = None
) -> Script[tuple[ErrorCode, Any]]:
    """Send a request until its answer is not an error after which a client repeats the request. `tries` limits the
    number of tries: after that many the code is NETWORK_EXCEPTION (13).
    """
    left = tries
    while left is None or left > 0:
        response = yield request
        code = ErrorCode.NETWORK_EXCEPTION if response is None else ErrorCode(code_of(response))
        if not code.retriable:
            return code, response
        if left is not None:
            left -= 1
        yield Pause(_RETRY_MS)
    return ErrorCode.NETWORK_EXCEPTION, None


class Conversation:
    """Runs a script until it ends, or its process is killed."""

    def __init__(
        self, cluster: TransactionBrokers, name: str, script: Script[None], on_end: Callable[[], None]
    ) -> None:
        """`on_end` is called when the script ends by itself."""
        self._cluster = cluster
        self.name = name
        self._host = cluster.world.choice(CLIENTS, "host", name)
        self._script = script
        self._on_end = on_end
        self._turn = 0
        self._held_until_ms = 0
        self.is_over = False

    def start(self) -> None:
        """Take the first step, soon."""
        self._cluster.world.after(0, lambda: self._go_on(0, None))

    def kill(self) -> None:
        """End the process; requests that it has sent may still arrive."""
        self.is_over = True

    def hold(self, ms: int) -> None:
        """Let the process stand still for so long."""
        self._held_until_ms = self._cluster.world.now_ms + ms

    def _go_on(self, turn: int, value: Any) -> None:
        world = self._cluster.world
        if self.is_over or turn != self._turn:
            return
        if world.now_ms < self._held_until_ms:
            world.after(self._held_until_ms - world.now_ms, lambda: self._go_on(turn, value))
            return
        self._turn += 1
        try:
            step = self._script.send(value)
        except StopIteration:
            self.is_over = True
            self._on_end()
            return
        turn = self._turn
        if isinstance(step, Pause):
            world.after(step.ms, lambda: self._go_on(turn, None))
        else:
            self._ask(step, turn)

    def _ask(self, request: LeaderRequest, turn: int) -> None:
        world = self._cluster.world
        link = Link() if request.is_ordered else None

        def give_up() -> None:
            if link is not None:
                link.close()
            self._go_on(turn, None)

        kind = type(request.message).__name__
        is_late = link is None and world.chance(self._cluster.late * _LATE_SHARES[kind], "late", (kind, self.name))
        if not (is_late and world.chance(_ONLY_LATE, "only late", (kind, self.name))):
            self._send(request, link, lambda response: self._go_on(turn, response))
        if is_late:
            world.sometimes[f"{kind} comes again late"] += 1
            latest_ms = world.choice(_LATEST_MS, "latest", (kind, self.name))
            late_ms = world.between(1, latest_ms, "lateness", (kind, self.name))
            world.after(late_ms, lambda: self._send(request, None, _ignore))
        world.after(_TIMEOUT_MS, give_up)

    def _send(self, request: LeaderRequest, link: Link | None, on_reply: Callable[[Any], None]) -> None:
        cluster = self._cluster
        state = cluster.metadata.image.partition(*request.leader_of)
        node = None if state is None else cluster.nodes.get(state.leader)
        if node is None:
            return
        ask(
            cluster.world,
            cluster.network,
            self._host,
            node,
            request.message,
            request.version,
            on_reply,
            on_leave=request.on_leave,
            link=link,
        )
