"""Sends the end of a transaction to its partitions: a marker per partition, until every leader has confirmed.

1. A leader confirms a committed marker.
2. After any other answer, or without an answer, the marker is sent again with the same number, by which the leader
   recognizes a second copy (docs/decisions/0061-a-marker-ends-one-transaction.md). A deleted partition needs no marker.
3. TRANSACTION_COORDINATOR_FENCED (52) and INVALID_PRODUCER_EPOCH (47) are final for a partition: a newer coordinator,
   or the producer, has ended the transaction, or the marker is a copy, and the next transaction is open already.
4. All markers of one turn for a broker go in one request: so one flush is enough for many transactions.
"""

import logging
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import groupby

from tailrace.coordinators.transactions.commands import MarkersToWrite
from tailrace.metadata.image import ClusterImage
from tailrace.model.errors import ErrorCode
from tailrace.model.ids import EPOCH_PER_TRANSACTION, NO_LEADER, BrokerId
from tailrace.model.partitions import TopicPartition
from tailrace.protocol.messages.transactions import (
    WritableTxnMarker,
    WritableTxnMarkerResult,
    WritableTxnMarkerTopic,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)
from tailrace.protocol.records.control import NO_DECISION
from tailrace.server.ports import Clock, Peer, Timer
from tailrace.server.quorum.metadata_partition_wire import known_code
from tailrace.server.transactions.markers import DecisionNumber, MarkerCodes, OnWritten, TransactionMarker

WriteHere = Callable[[Sequence[TransactionMarker], OnWritten], None]
"""Writes markers to partitions that this node leads: `server.transactions.markers.write_markers`."""
OnCodes = Callable[[MarkerCodes | None], None]
"""Called once with a broker's codes for the partitions of a marker, None without an answer. A partition that the answer
leaves out has no code."""

_MOST_PARTITIONS = 1_000
"""The most elements of one request: a broker accepts 20,000 elements, and needs some time for each element."""

_FIRST_RETRY_MS = 20
_LONGEST_RETRY_MS = 1_000
_REQUEST_TIMEOUT_MS = 30_000
"""Markers without an answer by then are sent again."""
_FINAL = frozenset((ErrorCode.NONE, ErrorCode.INVALID_PRODUCER_EPOCH, ErrorCode.TRANSACTION_COORDINATOR_FENCED))

_logger = logging.getLogger("tailrace.server")


class MarkerSender:
    """The markers of all transactions that this node coordinates."""

    def __init__(
        self,
        *,
        broker_id: BrokerId,
        image: Callable[[], ClusterImage],
        write_here: WriteHere,
        peer: Peer,
        clock: Clock,
    ) -> None:
        """`image` returns the present image; `peer` sends to the other brokers."""
        self.broker_id = broker_id
        self.image = image
        self.write_here = write_here
        self.peer = peer
        self.clock = clock

        self._outgoing: dict[BrokerId, list[tuple[TransactionMarker, OnCodes]]] = {}
        """The markers of this turn for other brokers."""

    def write(self, markers: MarkersToWrite, decision: DecisionNumber, on_done: Callable[[], None]) -> "Sending":
        """Begin to send markers. `on_done` is called once, when all partitions that still exist have their markers,
        perhaps at once.

        `decision` identifies this end among the ends of the same producer's transactions.
        """
        sending = Sending(self, markers, decision, on_done)
        sending.attempt()
        return sending

    def send(self, leader: BrokerId, marker: TransactionMarker, on_codes: OnCodes) -> None:
        """Send a marker to another broker, in one request with the other markers of this turn."""
        if not self._outgoing:
            self.clock.call_soon(self._send_all)
        self._outgoing.setdefault(leader, []).append((marker, on_codes))

    def _send_all(self) -> None:
        outgoing, self._outgoing = self._outgoing, {}
        for leader, markers in sorted(outgoing.items()):
            for together in _requests(markers):
                request = WriteTxnMarkersRequest(markers=tuple(on_the_wire(marker) for marker, _ in together.values()))
                self.peer.send(leader, request, partial(_distribute, together), timeout_ms=_REQUEST_TIMEOUT_MS)


class Sending:
    """The markers of one transaction, until the last is written or the work is cancelled."""

    def __init__(
        self, sender: MarkerSender, markers: MarkersToWrite, decision: DecisionNumber, on_done: Callable[[], None]
    ) -> None:
        self._sender = sender
        self._markers = markers
        keeps_epoch = markers.transaction_version < EPOCH_PER_TRANSACTION
        self._decision = decision if keeps_epoch else decision._replace(offset=NO_DECISION)
        self._on_done = on_done
        self._left = set(markers.partitions)
        self._attempt = 0
        self._awaited: set[TopicPartition] = set()
        """The partitions of this attempt that have no answer yet."""
        self._timer: Timer | None = None
        self._is_over = False

    def attempt(self) -> None:
        """Send the marker to the leaders of all remaining partitions."""
        self._attempt += 1
        leaders = self._leaders()
        self._left = set(leaders)
        self._awaited = {partition for partition, leader in leaders.items() if leader != NO_LEADER}
        if not self._awaited:
            self._end_attempt()
            return
        self._call_after(_REQUEST_TIMEOUT_MS)
        for leader in sorted({leaders[partition] for partition in self._awaited}):
            self._send(leader, sorted(partition for partition in self._awaited if leaders[partition] == leader))

    def _leaders(self) -> dict[TopicPartition, BrokerId]:
        """The leaders of the remaining partitions that still exist."""
        image = self._sender.image()
        states = ((partition, image.partition(*partition)) for partition in self._left)
        return {partition: state.leader for partition, state in states if state is not None}

    def _send(self, leader: BrokerId, partitions: Sequence[TopicPartition]) -> None:
        if leader == self._sender.broker_id:
            self._sender.write_here((self._marker(partitions),), partial(self._on_written, self._attempt))
            return
        for first in range(0, len(partitions), _MOST_PARTITIONS):
            part = partitions[first : first + _MOST_PARTITIONS]
            self._sender.send(leader, self._marker(part), partial(self._on_codes, self._attempt, leader, part))

    def _marker(self, partitions: Sequence[TopicPartition]) -> TransactionMarker:
        return TransactionMarker(
            producer_id=self._markers.producer_id,
            producer_epoch=self._markers.producer_epoch,
            transaction_version=self._markers.transaction_version,
            decision=self._decision,
            is_commit=self._markers.is_commit,
            partitions=tuple(partitions),
        )

    def _on_written(self, attempt: int, codes: Sequence[MarkerCodes]) -> None:
        self._record(attempt, codes[0])

    def _on_codes(
        self, attempt: int, leader: BrokerId, partitions: Collection[TopicPartition], codes: MarkerCodes | None
    ) -> None:
        """Record the codes of another broker's answer. The marker is sent again to a partition without a code."""
        answered = {} if codes is None else codes
        unanswered = [partition for partition in partitions if partition not in answered]
        if unanswered:
            _logger.info(
                "event=marker-unanswered id=%r broker=%d partitions=%d first=%s why=%s action=send-again",
                self._markers.transactional_id,
                leader,
                len(unanswered),
                unanswered[0],
                "no-answer" if codes is None else "left-out-of-the-answer",
            )
        self._record(attempt, answered)
        self._answered(attempt, unanswered)

    def _record(self, attempt: int, codes: Mapping[TopicPartition, ErrorCode]) -> None:
        """Record the codes of a leader. A final code counts also after the end of its attempt."""
        for partition, code in codes.items():
            if code in _FINAL:
                self._left.discard(partition)
            if code not in (ErrorCode.NONE, ErrorCode.NOT_LEADER_OR_FOLLOWER):
                _logger.info(
                    "event=marker-refused id=%r partition=%s code=%s",
                    self._markers.transactional_id,
                    partition,
                    code.name,
                )
        self._answered(attempt, codes)

    def _answered(self, attempt: int, partitions: Iterable[TopicPartition]) -> None:
        """Stop waiting for these partitions in this attempt. The attempt ends with its last partition."""
        if attempt == self._attempt and not self._is_over:
            self._awaited.difference_update(partitions)
            if not self._awaited:
                self._end_attempt()

    def _end_attempt(self) -> None:
        if self._is_over:
            return
        if self._left:
            self._call_after(min(_FIRST_RETRY_MS << min(self._attempt, 10), _LONGEST_RETRY_MS))
            return
        self.cancel()
        self._on_done()

    def _call_after(self, delay_ms: int) -> None:
        if self._timer is not None:
            self._timer.cancel()
        clock = self._sender.clock
        self._timer = clock.call_at(clock.monotonic_ms() + delay_ms, self.attempt)

    def cancel(self) -> None:
        """Send no marker any more."""
        self._is_over = True
        if self._timer is not None:
            self._timer.cancel()


OutgoingMarker = tuple[TransactionMarker, OnCodes]


def _requests(markers: Iterable[OutgoingMarker]) -> Iterator[dict[int, OutgoingMarker]]:
    """The markers in groups, each for one request, by producer id: an answer names the producer id."""
    together: dict[int, OutgoingMarker] = {}
    partitions = 0
    for each in markers:
        marker, _ = each
        is_full = partitions + len(marker.partitions) > _MOST_PARTITIONS
        if together and (is_full or marker.producer_id in together):
            yield together
            together, partitions = {}, 0
        together[marker.producer_id] = each
        partitions += len(marker.partitions)
    yield together


def _distribute(markers: Mapping[int, OutgoingMarker], response: WriteTxnMarkersResponse | None) -> None:
    """Call the callback of each marker with its codes in the answer; with None if there is no answer."""
    codes = None if response is None else {marker.producer_id: _codes(marker) for marker in response.markers}
    for producer_id, (_, on_codes) in markers.items():
        on_codes(None if codes is None else codes.get(producer_id, {}))


def on_the_wire(marker: TransactionMarker) -> WritableTxnMarker:
    """The marker in the form of a request."""
    by_topic = groupby(marker.partitions, key=lambda partition: partition.topic)
    return WritableTxnMarker(
        producer_id=marker.producer_id,
        producer_epoch=marker.producer_epoch,
        transaction_result=marker.is_commit,
        topics=tuple(
            WritableTxnMarkerTopic(name=topic, partition_indexes=tuple(partition.partition for partition in group))
            for topic, group in by_topic
        ),
        coordinator_epoch=marker.decision.coordinator_epoch,
        transaction_version=marker.transaction_version,
        decision_offset=marker.decision.offset,
    )


def _codes(marker: WritableTxnMarkerResult) -> MarkerCodes:
    return {
        TopicPartition(topic.name, partition.partition_index): known_code(partition.error_code)
        for topic in marker.topics
        for partition in topic.partitions
    }
