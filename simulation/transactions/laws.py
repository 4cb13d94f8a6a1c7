"""Laws of transactions, checked after every event and where answers leave, beside the laws of `replicas.laws`.

- "readers see records of committed transactions alone": each record in an answer to a read_committed reader was written
  in a transaction whose commit is decided when the answer leaves (no aborted read, no precommitted read).
- "an acknowledged write is there once": in a committed transaction at the offset of its acknowledgement; no value
  is twice in a log.
- "no transaction is torn": in the end all partitions and offsets of a transaction have the marker of its decision.
- "no offset of an aborted transaction": a committed transaction has set each offset of a group that is answered, and in
  the end the group has the last of these offsets.
- "each input is copied once": by the committed transactions, up to the offset of the group.
- "a transaction has the writes of one instance alone": no write of a fenced instance becomes part of another
  transaction.
- "a marker ends the transaction that it was written for": each marker that ends a transaction belongs to the decision
  of that transaction.
- "nothing is written behind the marker": no batch comes to a partition in which its transaction has ended.
- "markers follow a committed decision": a request for markers leaves when the decision is committed.
- "success of EndTxn is true": the decision is committed when the answer leaves, and is the same in the end.
- "a producer begins when the last transaction has ended": an identity is given when no partition has an open
  transaction of this transactional id.
- "each instance has an identity of its own".
- "the last stable offset moves on in the end": nothing is open for ever, in a log or at a coordinator.
- The laws of `transactions.ledger`, and of `transactions.sink_laws`.

A breach within a callback of the product is kept and raised after the event: the product logs what a callback raises.
"""

from collections.abc import Iterator
from itertools import chain
from typing import Any, Final

from simulation.harness.breach import Breach
from simulation.replicas.laws import ReplicaLaws
from simulation.transactions.book import Book, ClientTransaction, GroupOffset, Identity, number_of
from simulation.transactions.ledger import Ledger
from simulation.transactions.sink_laws import ACKNOWLEDGED, SinkLaws
from tailrace.coordinators.groups.records import OffsetRecord
from tailrace.coordinators.groups.records import decode_record as decode_group_record
from tailrace.coordinators.transactions.records import CoordinatorRecord, TransactionRecord, decode_record
from tailrace.model.partitions import GROUP_OFFSETS_TOPIC, TRANSACTION_STATE_TOPIC, TopicPartition
from tailrace.protocol.messages.sinks import CommitSinkRequest, CommitSinkResponse
from tailrace.protocol.messages.transactions import EndTxnRequest, WriteTxnMarkersRequest
from tailrace.protocol.records.batch import BatchHeader, iter_batches
from tailrace.protocol.records.control import ControlType, read_marker
from tailrace.protocol.records.record import Record, read_records
from tailrace.storage import ReadLimits

READERS: Final = "readers see records of committed transactions alone"
ONCE: Final = "an acknowledged write is there once"
TORN: Final = "no transaction is torn"
OFFSETS: Final = "no offset of an aborted transaction"
STABLE: Final = "the last stable offset moves on in the end"
COPIES: Final = "copies"
"""The topic of copies; a copy has the partition and offset of its input."""
TRUE: Final = "success of EndTxn is true"


class TransactionLaws(ReplicaLaws):
    """Follows the committed records, and compares these records with what clients know and what was decided."""

    def __init__(self, book: Book, **settings: Any) -> None:
        """`settings`: the settings of `ReplicaLaws`."""
        super().__init__(**settings)
        self.book = book
        self.ledger = Ledger()
        self.sinks = SinkLaws(book)
        self.visible: dict[TopicPartition, list[tuple[int, bytes]]] = {}
        """The records of committed transactions by partition, with their offsets, in the order of their markers."""
        self.offsets: dict[tuple[str, TopicPartition], int] = {}
        """The offsets of groups in committed transactions."""
        self.fates: dict[int, dict[TopicPartition, bool]] = {}
        """By number of a transaction: the partitions in which the transaction has ended, and whether it was committed
        there."""
        self._positions: dict[TopicPartition, int] = {}
        self._places: dict[TopicPartition, dict[bytes, int]] = {}
        self._open: dict[TopicPartition, dict[int, tuple[int, list[tuple[int, bytes]]]]] = {}
        """By partition and producer id: the number of the transaction, its values with their offsets."""
        self._pending: dict[tuple[TopicPartition, int], list[GroupOffset]] = {}
        self._ever: dict[tuple[str, TopicPartition], set[int]] = {}
        """The offsets that a group has had in committed transactions."""
        self._given: dict[Identity, str] = {}
        self._breach: Breach | None = None
        self._known_news = 0

    # After an event

    def check(self) -> None:
        """Check the laws after an event. Raises Breach."""
        super().check()
        self._follow()
        if self._breach is not None:
            raise self._breach

    def _report(self, law: str, detail: str) -> None:
        if self._breach is None:
            self._breach = Breach(law, detail)

    def _catch_up(self) -> None:
        """Take over records that this event has committed: an answer that leaves in the same event may depend on
        them."""
        self._steps = {}  # the step that runs may have committed more since the last look at its node
        try:
            self.check()
        except Breach as breach:
            self._breach = self._breach or breach
        self._steps = {}

    def _follow(self) -> None:
        """Take over the records that are committed by now, decisions first."""
        if self._known_news == self.news:
            return
        news = [name for name, end in self.committed_end.items() if end > self._positions.get(name, 0)]
        for name in sorted(news, key=lambda name: name.topic != TRANSACTION_STATE_TOPIC):
            for chunk, position, header in self._read(name, self.committed_end[name]):
                if header.is_control:
                    marker = read_marker(memoryview(chunk)[position:], header)
                    if marker is not None:
                        self._end(name, header, is_commit=marker.type is ControlType.COMMIT)
                else:
                    self._write(name, header, read_records(chunk, position))
        # A leader may have died in the event in which it committed: then another leader has the record later.
        if all(self._positions.get(name, 0) >= self.committed_end[name] for name in news):
            self._known_news = self.news

    def _read(self, name: TopicPartition, end: int) -> Iterator[tuple[Any, int, BatchHeader]]:
        for node in self.nodes:
            partition = node.table.find(*name) if node.is_up and node.is_serving else None
            if partition is None or partition.high_watermark < end:
                continue
            offset = self._positions.get(name, 0)
            while offset < end:
                for chunk in partition.log.read(ReadLimits(offset, 1 << 20), end).records:
                    for position, header in iter_batches(chunk):
                        offset = self._positions[name] = header.end_offset
                        yield chunk, position, header
            return

    # Committed records

    def _write(self, name: TopicPartition, header: BatchHeader, records: list[Record]) -> None:
        if name.topic == TRANSACTION_STATE_TOPIC:
            together: list[CoordinatorRecord] = []
            for record in records:
                decoded = decode_record(record.key, record.value)
                assert decoded is not None, f"{name}: {record}"
                together.append(decoded)
                if isinstance(decoded, TransactionRecord):
                    self._decide(decoded)
            self.sinks.decided(together)
        elif name.topic == GROUP_OFFSETS_TOPIC:
            self._write_offsets(name, header, records)
        else:
            places = self._places.setdefault(name, {})
            for record in records:
                assert record.value is not None
                self._join(name, header, number_of(record.value), (record.offset, record.value))
                if record.value in places:
                    raise Breach(ONCE, f"{name}: {record.value!r} at {places[record.value]} and {record.offset}")
                places[record.value] = record.offset

    def _decide(self, record: TransactionRecord) -> None:
        before = self.ledger.states.get(record.transactional_id)
        self.ledger.record(record)
        now = self.ledger.states.get(record.transactional_id)
        is_other = before is not None and now is not None and before.producer_id != now.producer_id
        self.sometimes["producer id used up"] += is_other

    def _write_offsets(self, name: TopicPartition, header: BatchHeader, records: list[Record]) -> None:
        for record in records:
            decoded = decode_group_record(record.key, record.value)
            if not header.is_transactional or not isinstance(decoded, OffsetRecord) or decoded.value is None:
                continue
            number = int(decoded.value.metadata)
            self._join(name, header, number, None)
            offset = GroupOffset(
                decoded.group_id, TopicPartition(decoded.topic, decoded.partition), decoded.value.offset
            )
            self._pending.setdefault((name, number), []).append(offset)

    def _join(self, name: TopicPartition, header: BatchHeader, number: int, value: tuple[int, bytes] | None) -> None:
        """Add a write to its transaction; `value` is None for an offset."""
        if name in self.fates.get(number, {}):
            raise Breach("nothing is written behind the marker", f"{name}: {self._told(number)}, at {header}")
        open_here = self._open.setdefault(name, {})
        before, values = open_here.setdefault(header.producer_id, (number, []))
        if before != number:
            raise Breach(
                "a transaction has the writes of one instance alone",
                f"{name} at {header.base_offset}: {self._told(number)} within {self._told(before)}",
            )
        if value is not None:
            values.append(value)

    def _end(self, name: TopicPartition, header: BatchHeader, *, is_commit: bool) -> None:
        number, values = self._open.get(name, {}).pop(header.producer_id, (-1, []))
        if number < 0:
            self.sometimes["marker with nothing to end"] += 1
            return
        decision = self.ledger.decision_of(self.book.transactions[number])
        if decision is None or decision.is_commit is not is_commit:
            raise Breach(
                "a marker ends the transaction that it was written for",
                f"{name} at {header.base_offset}: {'commit' if is_commit else 'abort'} of {header.producer_id} in"
                f" {header.producer_epoch} ends {self._told(number)}, decided is {decision}",
            )
        self.fates.setdefault(number, {})[name] = is_commit
        offsets = self._pending.pop((name, number), ())
        if is_commit:
            self.visible.setdefault(name, []).extend(values)
            self.sinks.shown(self.book.transactions[number], (value for _, value in values))
            for group_id, topic_partition, offset in offsets:
                self.offsets[group_id, topic_partition] = offset
                self._ever.setdefault((group_id, topic_partition), set()).add(offset)

    def _told(self, number: int) -> str:
        begun = self.book.transactions[number]
        return f"transaction {number} of {begun.instance} as {begun.identity}, wants commit {begun.wants_commit}"

    # Answers and requests that leave a broker

    def markers_leave(self, request: WriteTxnMarkersRequest) -> None:
        """Check the markers that a coordinator sends to a leader."""
        self._catch_up()
        for marker in request.markers:
            identity = Identity(marker.producer_id, marker.producer_epoch)
            decided = self.ledger.decisions_with_marker(identity)
            if not any(decision.is_commit is marker.transaction_result for decision in decided):
                self._report("markers follow a committed decision", f"{marker}: decided is {decided}")

    def end_leaves(self, request: EndTxnRequest, response: Any) -> None:
        """Check the answer to EndTxn that leaves."""
        if response.error_code:
            return
        self._catch_up()
        last = self.ledger.last.get(request.transactional_id)
        identity = Identity(request.producer_id, request.producer_epoch)
        if last is None or (last.identity, last.is_commit) != (identity, request.committed):
            self._report(TRUE, f"{request} is answered, the last decision is {last}")

    def identity_leaves(self, transactional_id: str, response: Any) -> None:
        """Check the answer to InitProducerId that leaves."""
        if response.error_code:
            return
        self._catch_up()
        state = self.ledger.states.get(transactional_id)
        # That of the answer too if nothing is known: members of a sink get producers that other members had.
        before = {response.producer_id}
        if state is not None:
            before |= {state.producer_id, state.previous_producer_id}
        still = [
            (name, self._told(number))
            for name, open_here in self._open.items()
            for producer_id, (number, _) in open_here.items()
            if producer_id in before
        ]
        if still:
            self._report("a producer begins when the last transaction has ended", f"{response}: open is {still}")

    def commit_leaves(self, request: CommitSinkRequest, response: CommitSinkResponse) -> None:
        """Check the answer to CommitSink that leaves."""
        if response.error_code:
            return
        self._catch_up()
        missing = self.sinks.missing(request.sink_id, request.batch)
        if missing or response.last_batch < request.batch:
            self._report(ACKNOWLEDGED, f"{response} to {request}: {missing} are not visible")

    def identity_given(self, identity: Identity, owner: str) -> None:
        """Check the identity that an instance has got. Raises Breach."""
        other = self._given.setdefault(identity, owner)
        if other != owner:
            raise Breach("each instance has an identity of its own", f"{identity} of {other} and of {owner}")

    def records_leave(self, name: TopicPartition, values: list[tuple[int, bytes]]) -> None:
        """Check the values in an answer to a read_committed reader."""
        self._catch_up()
        for offset, value in values:
            number = number_of(value)
            decision = self.ledger.decision_of(self.book.transactions[number])
            if decision is None or not decision.is_commit:
                self._report(READERS, f"{name} at {offset}: {self._told(number)}, decided is {decision}")

    def offset_leaves(self, key: tuple[str, TopicPartition], offset: int) -> None:
        """Check an answer with the stable offset of a group; -1: no offset."""
        self._catch_up()
        if offset >= 0 and offset not in self._ever.get(key, ()):
            self._report(OFFSETS, f"{key}: {offset} is answered, committed was {sorted(self._ever.get(key, ()))}")

    # In the end

    def check_end(self, stable: dict[tuple[str, TopicPartition], int]) -> None:
        """Check the laws at rest. `stable`: the offsets of groups at their coordinators. Raises Breach."""
        for transaction in self.book.transactions:
            self._check_whole(transaction)
        self.sinks.check_end()
        for key, offset in stable.items():
            if offset != self.offsets.get(key, -1):
                raise Breach(OFFSETS, f"{key}: the coordinator has {offset}, {self.offsets.get(key)} is committed")

    def check_copies(self, sources: dict[str, TopicPartition]) -> None:
        """Check that each input is copied once. `sources`: the partition that each group copies. Raises Breach."""
        copied: dict[int, list[int]] = {}
        for name in (name for name in self.visible if name.topic == COPIES):
            for _, value in self.visible[name]:
                _, number, offset = value.decode().split(":")
                copied.setdefault(int(number), []).append(int(offset))
        for group_id, source in sources.items():
            end, found = self.offsets.get((group_id, source), 0), sorted(copied.get(source.partition, []))
            if found != sorted(offset for offset, _ in self.visible.get(source, ()) if offset < end):
                raise Breach("each input is copied once", f"{source} up to {end}: {found}")

    def _check_whole(self, transaction: ClientTransaction) -> None:
        decision, told = self.ledger.decision_of(transaction), self._told(transaction.number)
        is_commit = decision is not None and decision.is_commit
        if transaction.answered is not None and transaction.answered is not is_commit:
            is_real = bool(transaction.written or transaction.offsets)
            if transaction.answered or is_real:
                raise Breach(TRUE, f"{told} was answered {transaction.answered}, decided is {decision}")
        if is_commit and transaction.wants_commit is not True:
            raise Breach(TRUE, f"{told}: its client did not ask for that")
        fates = self.fates.get(transaction.number, {})
        if any(fate is not is_commit for fate in fates.values()):
            raise Breach(TORN, f"{told}: decided is {decision}, markers are {fates}")
        if not is_commit:
            return
        for name, values in transaction.written.items():
            for value, offset in values.items():
                if self._places.get(name, {}).get(value) != offset:
                    raise Breach(ONCE, f"{told}: {value!r} in {name} was acknowledged at {offset}")
        wanted = chain(transaction.written, self._groups_of(transaction))
        missing = [name for name in wanted if name not in fates]
        if missing:
            raise Breach(TORN, f"{told}: committed, without a marker in {missing}")

    def _groups_of(self, transaction: ClientTransaction) -> Iterator[TopicPartition]:
        if transaction.offsets:
            yield from (name for name in transaction.partitions if name.topic == GROUP_OFFSETS_TOPIC)
