"""A consumer of a simulated cluster: it reads every partition from its rack, if the leader sends it there (KIP-392).

A consumer has a fetch session with each broker that it reads from (KIP-227). Laws:

- "consumers see committed records alone": some leader has committed every record that a broker gives, as leader or
  follower.
- "consumers miss nothing": each batch continues the one before, and what is committed is never out of range at its
  leader.
- "a redirect goes to a replica that can serve": in sync, in its leader's view, with the offset in its log and below its
  own high watermark.
"""

from functools import partial
from typing import Any, Final

from simulation.harness.breach import Breach
from simulation.replicas.brokers import ReplicaBrokers
from simulation.replicas.laws import PlacedBatch
from simulation.replicas.node import ReplicaNode
from simulation.replicas.requests import ask
from tailrace.fetch_session.requester import FetchSessionRequester, SessionRequest
from tailrace.model.errors import ErrorCode
from tailrace.model.partitions import TopicPartition
from tailrace.protocol.messages.fetch import (
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    ForgottenTopic,
    PartitionData,
)
from tailrace.protocol.records.batch import iter_batches

CONSUMER: Final = 1001
"""The address of all consumers."""
_TIMEOUT_MS: Final = 700
_WAIT_MS: Final = 150
_OF_A_SESSION: Final = 17
_Stated = tuple[int, int]
"""(offset, leader epoch) as the session states the pair."""


class _Session:
    """The consumer's session with one broker."""

    def __init__(self) -> None:
        self.requester: FetchSessionRequester[int, _Stated] = FetchSessionRequester()
        self.stated: dict[int, _Stated] = {}
        self.attempt = 0
        self.is_under_way = False


class ReplicaConsumer:
    """Reads from the start on, for ever."""

    def __init__(self, cluster: ReplicaBrokers, topic: str, *, partitions: int, rack: str) -> None:
        self._cluster = cluster
        self._topic = topic
        self.rack = rack
        self.positions = dict.fromkeys(range(partitions), 0)
        self._sources: dict[int, int] = {}  # of partitions that are read from a follower
        self._sessions: dict[int, _Session] = {}

    def poll(self) -> None:
        """Send a fetch to each broker to which no fetch is under way."""
        wanted = self._wanted()
        for node_id in {**wanted, **self._sessions}:
            session = self._sessions.setdefault(node_id, _Session())
            if not session.is_under_way:
                self._fetch(node_id, session, wanted.get(node_id, {}))

    def _wanted(self) -> dict[int, dict[int, _Stated]]:
        wanted: dict[int, dict[int, _Stated]] = {}
        image = self._cluster.metadata.image
        for number, position in self.positions.items():
            state = image.partition(self._topic, number)
            assert state is not None
            source = self._sources.get(number, int(state.leader))
            if source in self._cluster.nodes:
                wanted.setdefault(source, {})[number] = (position, state.leader_epoch)
        return wanted

    def _fetch(self, node_id: int, session: _Session, wanted: dict[int, _Stated]) -> None:
        if not wanted:
            last = session.requester.close()
            del self._sessions[node_id]
            if last is not None:
                self._send(node_id, self._request(last), lambda response: None)
            return
        changed = [(number, stated) for number, stated in wanted.items() if session.stated.get(number) != stated]
        request = session.requester.request(changed, [held for held in session.stated if held not in wanted])
        session.stated = wanted
        session.attempt += 1
        session.is_under_way = True
        attempt = session.attempt
        self._send(node_id, self._request(request), partial(self._answered, node_id, session, attempt))
        self._cluster.world.after(_TIMEOUT_MS, partial(self._answered, node_id, session, attempt, None))

    def _request(self, request: SessionRequest[int, _Stated]) -> FetchRequest:
        topic = self._cluster.metadata.image.topics[self._topic]
        named = tuple(
            FetchPartition(
                partition=number, fetch_offset=offset, current_leader_epoch=epoch, partition_max_bytes=1 << 20
            )
            for number, (offset, epoch) in request.partitions
        )
        return FetchRequest(
            max_wait_ms=_WAIT_MS,
            min_bytes=1,
            max_bytes=1 << 20,
            session_id=request.session_id,
            session_epoch=request.session_epoch,
            topics=(FetchTopic(topic_id=topic.topic_id, partitions=named),) if named else (),
            forgotten_topics_data=(
                (ForgottenTopic(topic_id=topic.topic_id, partitions=request.forgotten),) if request.forgotten else ()
            ),
            rack_id=self.rack,
        )

    def _send(self, node_id: int, request: FetchRequest, on_reply: Any) -> None:
        cluster, node = self._cluster, self._cluster.nodes[node_id]
        ask(
            cluster.world,
            cluster.network,
            CONSUMER,
            node,
            request,
            _OF_A_SESSION,
            on_reply,
            on_leave=partial(self._check_leaving, node, dict(self.positions)),
        )

    # Answers

    def _check_leaving(self, node: ReplicaNode, positions: dict[int, int], response: FetchResponse) -> None:
        """Check an answer that leaves its broker, in the same turn."""
        cluster = self._cluster
        for topic in response.responses:
            for data in topic.partitions:
                partition = node.table.find(self._topic, data.partition_index)
                if partition is None:
                    continue
                if partition.is_leader:
                    cluster.laws.note_committed(node, partition)
                if data.preferred_read_replica >= 0:
                    cluster.world.sometimes["consumer redirected"] += 1
                    offset = positions[data.partition_index]
                    cluster.laws.redirected(node, partition, cluster.nodes[data.preferred_read_replica], offset)

    def _answered(self, node_id: int, session: _Session, attempt: int, response: FetchResponse | None) -> None:
        if attempt != session.attempt or not session.is_under_way:
            return
        session.is_under_way = False
        if response is None:
            session.requester.failed()
            self._leave(session.stated)
            return
        answers = {data.partition_index: data for topic in response.responses for data in topic.partitions}
        does_count = session.requester.answered(
            error_code=response.error_code, session_id=response.session_id, keys=list(answers)
        )
        if does_count:
            for number, data in answers.items():
                stated = session.stated.get(number)
                if stated is not None and stated[0] == self.positions[number]:
                    self._take(node_id, number, data)

    def _leave(self, numbers: Any) -> None:
        """Read these partitions from their leaders again."""
        for number in numbers:
            self._sources.pop(number, None)

    def _take(self, node_id: int, number: int, data: PartitionData) -> None:
        cluster = self._cluster
        sometimes, code = cluster.world.sometimes, ErrorCode(data.error_code)
        is_at_follower = self._sources.get(number) == node_id
        if code is ErrorCode.OFFSET_OUT_OF_RANGE and not is_at_follower:
            raise Breach("consumers miss nothing", f"{self.positions[number]} of {number} is out of range at {node_id}")
        if code is not ErrorCode.NONE:
            sometimes["consumer left a follower"] += is_at_follower
            self._leave((number,))
            return
        if data.preferred_read_replica >= 0:
            self._sources[number] = data.preferred_read_replica
            return
        if not data.records:
            return
        sometimes["consumer read from a follower"] += is_at_follower
        name = TopicPartition(self._topic, number)
        committed = cluster.laws.committed.get(name, {})
        for _, header in iter_batches(data.records):
            batch = PlacedBatch(header.end_offset, header.partition_leader_epoch, header.crc)
            if committed.get(header.base_offset) != batch:
                raise Breach(
                    "consumers see committed records alone",
                    f"{name} from {node_id}: {batch} at {header.base_offset}, committed is"
                    f" {committed.get(header.base_offset)}",
                )
            if not header.base_offset <= self.positions[number] < header.end_offset:
                raise Breach(
                    "consumers miss nothing",
                    f"{name} from {node_id}: {header.base_offset} comes after {self.positions[number]}",
                )
            self.positions[number] = header.end_offset
