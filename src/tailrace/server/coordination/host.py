"""The coordinators of this node: a coordinator for each partition of an internal topic that this node leads.

    loading --log replayed--> active --leadership gone--> closed
    loading --the log cannot be read--> failed

1. Only an active coordinator decides and is read. A loading coordinator refuses every request with
   COORDINATOR_LOAD_IN_PROGRESS (14): a client that got "no offset" would start at the begin or end of the log.
2. An answer is sent when its records are committed. An answer without records waits for the earlier records of other
   answers, if decisions read records that are appended and not yet committed.
3. When the leadership ends, all waiting answers are NOT_COORDINATOR (16), and the machine is dropped.

The image states the partitions that this node leads. If this node leads a partition again, in another epoch, the
partition gets a new host.
"""

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from enum import Enum, auto
from typing import Any, Final, Generic, TypeVar

from tailrace.metadata.image import EMPTY_IMAGE, ClusterImage, ImageDelta
from tailrace.model.errors import ErrorCode, KafkaError
from tailrace.model.ids import BrokerId
from tailrace.model.key_hash import coordinator_partition
from tailrace.model.machines import StagedMachine
from tailrace.replication.partition import Partition
from tailrace.server.callbacks import call_safely
from tailrace.server.coordination.coordinator_log import (
    IN_NONE,
    CoordinatorLog,
    InTransaction,
    Outcome,
)
from tailrace.server.ports import Clock, Timer
from tailrace.server.waiters import Deadlines

K = TypeVar("K")
C = TypeVar("C")
R = TypeVar("R")
A = TypeVar("A")
T = TypeVar("T")

_LONGEST_KEY: Final = 8191
"""The most characters of a key: at most 32,764 bytes, which an int16 can count."""

_logger = logging.getLogger("tailrace.server")


class HostState(Enum):
    """The state of a coordinator partition on this node."""

    LOADING = auto()
    ACTIVE = auto()
    FAILED = auto()
    CLOSED = auto()


_REFUSALS = {
    HostState.LOADING: (ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, "its log is being read"),
    HostState.FAILED: (ErrorCode.COORDINATOR_NOT_AVAILABLE, "its log cannot be read"),
    HostState.CLOSED: (ErrorCode.NOT_COORDINATOR, "another broker leads it now"),
}


class CoordinatorHost(ABC, Generic[K, C, R, A]):
    """Runs one machine: `K` are the keys that it coordinates, `C` its commands, `R` its records, `A` its answers."""

    def __init__(
        self,
        log: CoordinatorLog[R],
        machine: StagedMachine[C, R, A],
        *,
        keys: str,
        reads_latest: bool,
    ) -> None:
        """`keys` is the noun for the keys in the log line of a load. `reads_latest`: decisions read all appended
        records, not only committed records."""
        self.partition = log.partition
        self.leader_epoch = log.partition.leader_epoch
        """The epoch in which the partition was led when this host took it over."""
        self.state = HostState.LOADING
        self._machine = machine
        self._keys = keys
        self._reads_latest = reads_latest
        self._clock = log.clock
        self._timers: list[Timer] = []
        self._log = log
        self._begun_ms = 0
        log.on_committed, log.on_discarded = machine.commit, machine.discard

    @abstractmethod
    def has(self, key: K) -> bool:
        """Whether the coordinator has this key already: a known key does not count against the limit of keys."""

    @property
    @abstractmethod
    def key_count(self) -> int:
        """The number of keys of the coordinator."""

    @abstractmethod
    def _activated(self) -> None:
        """Called once, when the log is replayed and the coordinator begins to serve."""

    @abstractmethod
    def _closed(self) -> None:
        """Called once, when the leadership has ended, after the answers that waited for the log were sent."""

    @property
    def is_active(self) -> bool:
        return self.state is HostState.ACTIVE

    def check_active(self) -> None:
        """Raises KafkaError COORDINATOR_LOAD_IN_PROGRESS (14), COORDINATOR_NOT_AVAILABLE (15), NOT_COORDINATOR (16)."""
        if self.state is not HostState.ACTIVE:
            code, why = _REFUSALS[self.state]
            raise KafkaError(code, f"{self.partition.topic_partition}: {why}")

    def load(self) -> None:
        """Read the log, then serve."""
        self._begun_ms = self._clock.monotonic_ms()
        self._log.load(self._machine.apply, self._loaded, self._load_failed)

    def _loaded(self) -> None:
        self.state = HostState.ACTIVE
        self._activated()
        count, name = self.key_count, self.partition.topic_partition
        level = logging.INFO if count else logging.DEBUG  # a new cluster has 50 empty partitions
        took_ms = self._clock.monotonic_ms() - self._begun_ms
        line = "event=coordinator-loaded partition=%s %s=%d from_offset=%d ms=%d"
        _logger.log(level, line, name, self._keys, count, self._log.loaded_from, took_ms)

    def _load_failed(self, fault: KafkaError) -> None:
        self.state = HostState.FAILED
        _logger.error("event=coordinator-failed partition=%s fault=%s", self.partition.topic_partition, fault)

    def submit(self, command: C, on_done: Callable[[A | KafkaError], None]) -> None:
        """Decide a command and commit its records; `on_done` is called once, now or later.

        A coordinator that is not active refuses, as `check_active` says.
        """
        self._decide(command, on_done)

    def _decide(
        self, command: C, on_done: Callable[[A | KafkaError], None], *, within: InTransaction = IN_NONE
    ) -> KafkaError | None:
        """Do the work of `submit`, but return the refusal of a refused command."""
        try:
            self.check_active()
            decision = self._machine.decide(command, self._clock.now_ms())
            if decision.records:
                answer = decision.response
                self._append(
                    decision.records,
                    lambda failure: call_safely("answer-failed", on_done, failure or answer),
                    within=within,
                )
                return None
        except KafkaError as refusal:
            self._answer(on_done, refusal)
            return refusal
        self._answer(on_done, decision.response)
        return None

    def _answer(self, on_done: Callable[[T | KafkaError], None], answer: T | KafkaError) -> None:
        """Send an answer without records, as soon as the records that the answer may depend on are committed."""
        if self._reads_latest:
            self._log.when_committed(lambda failure: call_safely("answer-failed", on_done, failure or answer))
        else:
            on_done(answer)

    def _append(
        self, records: Sequence[R], outcome: Outcome, *, within: InTransaction = IN_NONE, is_atomic: bool = False
    ) -> None:
        """Append the records, as `CoordinatorLog.append`, and stage the records in the machine."""
        self._log.append(records, outcome, within=within, is_atomic=is_atomic)
        self._machine.stage(records)

    def decide_until_done(self, commands: Iterable[C]) -> None:
        """Decide each command until a decision has no records, one decision per turn of the event loop.

        A failure ends the work. The next call or load carries out the remaining commands; a delay of these commands
        does no harm.
        """
        rest = iter(commands)
        command = next(rest, None)

        def step() -> None:
            nonlocal command
            if command is None or not self.is_active:
                return
            try:
                records = self._machine.decide(command, self._clock.now_ms()).records
                if records:
                    self._append(records, decided)
                    return
                command = next(rest, None)
                decided(None)
            except KafkaError as refusal:
                decided(refusal)

        def decided(failure: KafkaError | None) -> None:
            if failure is None:
                self._clock.call_soon(step)
            else:
                _logger.warning("event=sweep-failed of=%s fault=%s", self.partition.topic_partition, failure)

        step()

    def _repeat(self, interval_ms: int, work: Callable[[], None]) -> None:
        """Call `work` at this interval until the host is closed."""
        place = len(self._timers)

        def again() -> None:
            # The timer is set first, so that failing work is repeated too.
            self._timers[place] = self._clock.call_at(self._clock.monotonic_ms() + interval_ms, again)
            work()

        self._timers.append(self._clock.call_at(self._clock.monotonic_ms() + interval_ms, again))

    def close(self) -> None:
        """End the coordinator with the leadership: answer all waiting requests. A second call does nothing."""
        if self.state is HostState.CLOSED:
            return
        self.state = HostState.CLOSED
        for timer in self._timers:
            timer.cancel()
        self._log.close(KafkaError(ErrorCode.NOT_COORDINATOR, f"{self.partition.topic_partition} has moved"))
        self._closed()


H = TypeVar("H", bound=CoordinatorHost[Any, Any, Any, Any])


class CoordinatorService(ABC, Generic[K, H]):
    """The coordinators of this node, by partition of the internal topic: `K` is the type of their keys, `H` the type of
    their hosts.

    All requests are refused until the first `on_image`.
    """

    def __init__(
        self,
        topic: str,
        *,
        noun: str,
        key_text: Callable[[K], str],
        invalid_key: ErrorCode,
        max_keys: int,
        limit: str,
        broker_id: BrokerId,
        find_partition: Callable[[str, int], Partition | None],
        clock: Clock,
    ) -> None:
        """`noun` is the word for a key in error texts; the hash of `key_text` gives the partition of a key.

        A key that does not fit into a record is refused with `invalid_key`. If this node already has `max_keys` keys, a
        new key is refused with INVALID_REQUEST; `limit` is the name of the setting of `max_keys`.
        """
        self._topic = topic
        self._noun = noun
        self._key_text = key_text
        self._invalid_key = invalid_key
        self._max_keys = max_keys
        self._limit = limit
        self._broker_id = broker_id
        self._find_partition = find_partition
        self._clock = clock
        self._deadlines = Deadlines(clock)
        self.image = EMPTY_IMAGE
        """The image of the last `on_image`."""
        self._hosts: dict[int, H] = {}
        self._is_closed = False

    @abstractmethod
    def _host(self, partition: Partition) -> H:
        """A new coordinator for this partition, not loaded yet."""

    def on_image(self, image: ClusterImage, delta: ImageDelta) -> None:
        """Take over and give up partitions by the image. The caller has given the partitions their roles before."""
        self.image = image
        if self._is_closed:
            return
        led = {partition.topic_partition.partition: partition for partition in self._led_partitions()}
        for number, host in tuple(self._hosts.items()):
            if led.get(number) is not host.partition or host.leader_epoch != host.partition.leader_epoch:
                host.close()
                del self._hosts[number]
        for number in led.keys() - self._hosts.keys():
            self._take_over(number, led[number])

    def _led_partitions(self) -> Iterator[Partition]:
        topic = self.image.topics.get(self._topic)
        for number, state in topic.partitions.items() if topic is not None else ():
            if state.leader == self._broker_id:
                partition = self._find_partition(self._topic, number)
                if partition is not None and partition.is_leader:
                    yield partition

    def _take_over(self, number: int, partition: Partition) -> None:
        host = self._hosts[number] = self._host(partition)
        host.load()

    def host_of(self, key: K, *, check_limit: bool = False) -> H:
        """The active coordinator of this key. A request calls this once.

        Raises KafkaError with the code of an invalid key, NOT_COORDINATOR (16), the errors of
        `CoordinatorHost.check_active`, and with `check_limit` INVALID_REQUEST (42) if the key is new and this node has
        as many keys as its limit.
        """
        text = self._key_text(key)
        if not text or len(text) > _LONGEST_KEY:
            raise KafkaError(self._invalid_key, f"a {self._noun} is not empty, and not longer than a record's key")
        topic = self.image.topics.get(self._topic)
        host = None
        if topic is not None:
            number = coordinator_partition(text, len(topic.partitions))
            host = self._hosts.get(number) or self._host_at(number)
        if host is None:
            raise KafkaError(ErrorCode.NOT_COORDINATOR, f"this broker does not coordinate {self._noun} {text!r}")
        host.check_active()
        if check_limit and not host.has(key):
            self._check_limit()
        return host

    def _check_limit(self) -> None:
        if sum(host.key_count for host in self._hosts.values()) >= self._max_keys:
            raise KafkaError(
                ErrorCode.INVALID_REQUEST,
                f"this broker has {self._max_keys} {self._noun}s, as many as {self._limit} allows",
            )

    def _host_at(self, number: int) -> H | None:
        """The coordinator of this partition, in any state; None if this node has no such coordinator."""
        if number not in self._hosts and self._topic in self.image.topics and not self._is_closed:
            # A partition may be opened after `on_image`: first a deleted partition of the same name has to be flushed.
            partition = self._find_partition(self._topic, number)
            if partition is not None and partition.is_leader:
                self._take_over(number, partition)
        return self._hosts.get(number)

    def active_hosts(self) -> list[H]:
        """The coordinators of this node. Raises the error of `CoordinatorHost.check_active` if a coordinator is not
        active."""
        for host in self._hosts.values():
            host.check_active()
        return list(self._hosts.values())

    def close(self) -> None:
        """Answer all waiting requests with NOT_COORDINATOR, as the node stops."""
        self._is_closed = True
        for host in self._hosts.values():
            host.close()
        self._hosts.clear()
