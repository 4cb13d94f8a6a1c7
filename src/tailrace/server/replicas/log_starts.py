"""The starts of a leader's logs, for which a follower asks (ListOffsets) when the leader's refusals do not state the
log start.

Kafka's answer to a fetch out of range has no log start; Kafka's followers also send ListOffsets then. One request per
leader is under way at a time; partitions that come meanwhile go into the next request.
"""

from collections.abc import Callable
from typing import Any, Final

from tailrace.model.errors import ErrorCode
from tailrace.model.ids import BrokerId
from tailrace.model.partitions import TopicPartition
from tailrace.protocol.messages.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from tailrace.replication.fetcher_events import AskLogStart, LogStartKnown
from tailrace.server.ports import Peer

EARLIEST_LOCAL: Final = -4
"""The special timestamp for the first offset on the leader's disk, from which a follower fetches."""
OLDEST_VERSION: Final = 8
"""The first version of ListOffsets with that timestamp."""


class LogStarts:
    """The ListOffsets requests to one leader."""

    def __init__(
        self,
        leader: BrokerId,
        *,
        broker_id: BrokerId,
        secret: bytes,
        peer: Peer,
        timeout_ms: int,
        on_known: Callable[[LogStartKnown], None],
    ) -> None:
        """`broker_id` and `secret` belong to this broker: for a proven replica, the answer goes up to the leader's log
        end."""
        self._leader = leader
        self._broker_id = broker_id
        self._secret = secret
        self._peer = peer
        self._timeout_ms = timeout_ms
        self._on_known = on_known
        self._next: dict[TopicPartition, AskLogStart] = {}
        self._asked: dict[TopicPartition, AskLogStart] = {}

    def ask(self, topic_partition: TopicPartition, effect: AskLogStart) -> None:
        """Ask for the start of this partition's log. The leader may not answer: the follower asks again."""
        self._next[topic_partition] = effect
        if not self._asked:
            self._send()

    def _send(self) -> None:
        self._asked, self._next = self._next, {}
        by_topic: dict[str, list[ListOffsetsPartition]] = {}
        for (topic, number), effect in self._asked.items():
            wanted = ListOffsetsPartition(
                partition_index=number, current_leader_epoch=effect.leader_epoch, timestamp=EARLIEST_LOCAL
            )
            by_topic.setdefault(topic, []).append(wanted)
        request = ListOffsetsRequest(
            replica_id=self._broker_id,
            secret=self._secret,
            topics=tuple(
                ListOffsetsTopic(name=topic, partitions=tuple(partitions)) for topic, partitions in by_topic.items()
            ),
        )
        self._peer.send(
            self._leader, request, self._answered, oldest_version=OLDEST_VERSION, timeout_ms=self._timeout_ms
        )

    def _answered(self, answer: Any) -> None:
        asked, self._asked = self._asked, {}
        if self._next:
            self._send()
        for topic in () if answer is None else answer.topics:
            for found in topic.partitions:
                effect = asked.get(TopicPartition(topic.name, found.partition_index))
                if effect is not None and found.error_code == ErrorCode.NONE and found.offset >= 0:
                    known = LogStartKnown(
                        key=effect.key, leader_epoch=effect.leader_epoch, log_start_offset=found.offset
                    )
                    self._on_known(known)
