"""Offsets that the leaders of partitions are known to have reached: the records that a range commit names lie below
these offsets (KIP-X).

The coordinator of a group need not lead the partitions that it reads. If a replica here has a high watermark that is
high enough, that high watermark is used; otherwise the last answer of the present leader, if that is high enough.
Otherwise this broker sends ListOffsets to the leader. One request per leader is under way at a time; partitions that
are added meanwhile go into the next request.
"""

from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from tailrace.metadata.image import ClusterImage
from tailrace.model.errors import ErrorCode
from tailrace.model.ids import NO_LEADER, BrokerId
from tailrace.model.partitions import PartitionState, TopicPartition
from tailrace.protocol.messages.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from tailrace.replication.partition import Partition
from tailrace.server.ports import Peer

LATEST: Final = -1
CONSUMER: Final = -1
OLDEST_VERSION: Final = 5
"""The first version of ListOffsets in which a new leader answers that it does not know its high watermark yet."""
MOST_KNOWN: Final = 10_000
"""The most ends that are remembered."""

Ends = Mapping[TopicPartition, int]


class PartitionEnds:
    """The ends of all partitions of the cluster, as far as this broker knows the ends."""

    def __init__(
        self,
        *,
        find_partition: Callable[[str, int], Partition | None],
        image: Callable[[], ClusterImage],
        peer: Peer,
        timeout_ms: int,
    ) -> None:
        """`timeout_ms` is the longest wait for a leader's answer."""
        self._find_partition = find_partition
        self._image = image
        self._peer = peer
        self._timeout_ms = timeout_ms
        self._known: OrderedDict[TopicPartition, tuple[bytes, int, int]] = OrderedDict()
        """The topic id, the leader epoch and the end of each partition, in the order of their last use."""
        self._leaders: dict[BrokerId, _Questions] = {}

    def confirm(self, wanted: Ends, on_known: Callable[[Ends], None]) -> None:
        """Call `on_known` once, now or later, with an offset that the leader of each partition has reached: at least
        the wanted offset, or the end. Partitions whose leader does not answer are left out."""
        known: dict[TopicPartition, int] = {}
        questions: dict[BrokerId, list[TopicPartition]] = {}
        for partition, offset in wanted.items():
            end = self._end(partition, offset)
            if end is not None:
                known[partition] = end
                continue
            state = self._image().partition(*partition)
            here = self._find_partition(*partition)
            if state is not None and state.leader != NO_LEADER and (here is None or not here.is_leader):
                questions.setdefault(BrokerId(state.leader), []).append(partition)
        if not questions:
            on_known(known)
            return
        wait = _Wait(len(questions), known, on_known)
        for leader, partitions in questions.items():
            asked = self._leaders.get(leader)
            if asked is None:
                asked = self._leaders[leader] = _Questions()
            asked.waiting.append((wait, partitions))
            if not asked.is_under_way:
                self._send(leader, asked)

    def _end(self, partition: TopicPartition, wanted: int) -> int | None:
        """The end that this broker knows, if the end is high enough, or is certain; else None."""
        here = self._find_partition(*partition)
        if here is not None:
            # The high watermark of a new leader may be behind what readers have seen.
            is_certain = here.is_leader and here.high_watermark >= here.leader_epoch_start_offset
            if is_certain or here.high_watermark >= wanted:
                return here.high_watermark
        found, state = self._known.get(partition), self._image().partition(*partition)
        if found is None or state is None or found[:2] != (state.topic_id, state.leader_epoch) or found[2] < wanted:
            return None
        self._known.move_to_end(partition)
        return found[2]

    def _send(self, leader: BrokerId, questions: "_Questions") -> None:
        waiting, questions.waiting = questions.waiting, []
        questions.is_under_way = True
        by_topic: dict[str, dict[int, PartitionState]] = {}
        for _, partitions in waiting:
            for partition in partitions:
                state = self._image().partition(*partition)
                if state is not None:
                    by_topic.setdefault(partition.topic, {})[partition.partition] = state
        request = ListOffsetsRequest(
            replica_id=CONSUMER,
            topics=tuple(
                ListOffsetsTopic(
                    name=topic,
                    partitions=tuple(
                        ListOffsetsPartition(
                            partition_index=number, current_leader_epoch=state.leader_epoch, timestamp=LATEST
                        )
                        for number, state in partitions.items()
                    ),
                )
                for topic, partitions in by_topic.items()
            ),
        )

        def answered(answer: Any) -> None:
            questions.is_under_way = False
            if questions.waiting:
                self._send(leader, questions)
            else:
                del self._leaders[leader]
            found = dict(self._ends_in(answer, by_topic))
            for wait, partitions in waiting:
                wait.add({partition: found[partition] for partition in partitions if partition in found})

        self._peer.send(leader, request, answered, oldest_version=OLDEST_VERSION, timeout_ms=self._timeout_ms)

    def _ends_in(
        self, answer: Any, asked: Mapping[str, Mapping[int, PartitionState]]
    ) -> Iterable[tuple[TopicPartition, int]]:
        """The valid ends in an answer, which are also remembered. Everything else in the answer is ignored: a broker
        may send any answer."""
        for topic in () if answer is None else answer.topics:
            for end in topic.partitions:
                state = asked.get(topic.name, {}).get(end.partition_index)
                if state is not None and end.error_code == ErrorCode.NONE and end.offset >= 0:
                    partition = TopicPartition(topic.name, end.partition_index)
                    self._known[partition] = (state.topic_id, state.leader_epoch, end.offset)
                    self._known.move_to_end(partition)
                    if len(self._known) > MOST_KNOWN:
                        self._known.popitem(last=False)
                    yield partition, end.offset


class _Questions:
    """The requests to one leader."""

    def __init__(self) -> None:
        self.waiting: list[tuple[_Wait, list[TopicPartition]]] = []
        """The waits whose partitions are not sent to the leader yet."""
        self.is_under_way = False


class _Wait:
    """A `confirm` that waits for leaders."""

    def __init__(self, leaders: int, known: dict[TopicPartition, int], on_known: Callable[[Ends], None]) -> None:
        self._left = leaders
        self._known = known
        self._on_known = on_known

    def add(self, ends: Ends) -> None:
        """Take the ends that a leader has answered. After the last leader's answer, `on_known` is called."""
        self._known.update(ends)
        self._left -= 1
        if not self._left:
            self._on_known(self._known)
