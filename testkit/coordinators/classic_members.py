"""Members with the classic protocol that behave as real clients, but send requests only when a test says so."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from tailrace.model.errors import ErrorCode
from tailrace.protocol.messages.consumer_protocol import (
    ConsumerProtocolAssignment,
    ConsumerProtocolSubscription,
    ConsumerTopicPartitions,
    decode_prefixed,
)
from tailrace.protocol.messages.membership import (
    HeartbeatRequest,
    JoinGroupRequest,
    JoinGroupRequestProtocol,
    JoinGroupResponse,
    LeaveGroupRequest,
    MemberIdentity,
    SyncGroupRequest,
    SyncGroupRequestAssignment,
)
from tailrace.protocol.schema import encode_prefixed
from testkit.coordinators.group_path import GroupPath
from testkit.nodes.data_path import Exchange

_JOIN_VERSION, _SYNC_VERSION, _HEARTBEAT_VERSION, _LEAVE_VERSION = 9, 5, 4, 5
_OWNED_FROM = 1

Partition = tuple[str, int]


@dataclass(slots=True)
class ClassicTableMember:
    """A classic consumer: it reads what it was assigned, and assigns if it leads.

    An eager member gives up its partitions before it joins again; a cooperative member says what it reads and gives up
    the partitions that are not assigned to it any more (KIP-429).
    """

    node: GroupPath
    name: str
    topics: tuple[str, ...] = ("orders",)
    group_id: str = "g"
    instance_id: str | None = None
    is_cooperative: bool = False
    says_beside: bytes | None = None
    """The user data that the member gives all members beside their partitions, when it leads."""
    session_timeout_ms: int = 10_000
    rebalance_timeout_ms: int = 30_000
    member_id: str = ""
    generation: int = -1
    reads: set[Partition] = field(default_factory=set)
    must_join: bool = True
    joining: Exchange | None = None
    syncing: Exchange | None = None
    led_for: dict[str, int] | None = None
    """On a leader the number of partitions that it has assigned of each topic: if a topic has another number, it joins
    again."""

    @property
    def protocol(self) -> str:
        return "cooperative-sticky" if self.is_cooperative else "range"

    def act(self) -> ErrorCode:
        """Do the next due step: take an answer that has come, join, ask for the assignment, or send a heartbeat."""
        if self.joining is not None:
            return self._take_join() if self.joining.is_answered else ErrorCode.NONE
        if self.syncing is not None:
            return self._take_sync() if self.syncing.is_answered else ErrorCode.NONE
        if self.must_join:
            return self.join()
        if self.led_for is not None and self.led_for != self._partition_counts(self.led_for):
            return self.join()
        return self.beat()

    def _partition_counts(self, topics: Iterable[str]) -> dict[str, int]:
        images = self.node.controller.image.topics
        return {topic: len(images[topic].partitions) if topic in images else 0 for topic in topics}

    def join(self) -> ErrorCode:
        """Send JoinGroup, and SyncGroup if that is answered."""
        self.must_join = True
        if not self.is_cooperative:
            self.reads = set()
        self.joining = self.node.send(self.join_request(), _JOIN_VERSION, client_id=self.name)
        return self._take_join() if self.joining.is_answered else ErrorCode.NONE

    def join_request(self) -> JoinGroupRequest:
        """The JoinGroup that the member would send now."""
        return JoinGroupRequest(
            group_id=self.group_id,
            session_timeout_ms=self.session_timeout_ms,
            rebalance_timeout_ms=self.rebalance_timeout_ms,
            member_id=self.member_id,
            group_instance_id=self.instance_id,
            protocol_type="consumer",
            protocols=(JoinGroupRequestProtocol(name=self.protocol, metadata=self._metadata()),),
        )

    def _metadata(self) -> bytes:
        owned = _on_the_wire(self.reads)
        return encode_prefixed(ConsumerProtocolSubscription(topics=self.topics, owned_partitions=owned), _OWNED_FROM)

    def _take_join(self) -> ErrorCode:
        assert self.joining is not None
        answer: JoinGroupResponse = self.joining.response
        self.joining = None
        code = ErrorCode(answer.error_code)
        if code is ErrorCode.MEMBER_ID_REQUIRED:
            self.member_id = answer.member_id
            return self.join()
        if code:
            return self._refused(code)
        self.member_id, self.generation, self.must_join = answer.member_id, answer.generation_id, False
        leads = answer.leader == answer.member_id and not answer.skip_assignment
        self.led_for = None
        given = self._assign(answer) if leads else {}
        request = SyncGroupRequest(
            group_id=self.group_id,
            generation_id=self.generation,
            member_id=self.member_id,
            group_instance_id=self.instance_id,
            protocol_type="consumer",
            protocol_name=answer.protocol_name,
            assignments=tuple(
                SyncGroupRequestAssignment(
                    member_id=member_id,
                    assignment=encode_prefixed(
                        ConsumerProtocolAssignment(
                            assigned_partitions=_on_the_wire(partitions), user_data=self.says_beside
                        ),
                        _OWNED_FROM,
                    ),
                )
                for member_id, partitions in given.items()
            ),
        )
        self.syncing = self.node.send(request, _SYNC_VERSION)
        return self._take_sync() if self.syncing.is_answered else ErrorCode.NONE

    def _assign(self, answer: JoinGroupResponse) -> Mapping[str, set[Partition]]:
        """Assign the partitions evenly. A cooperative leader does not give a partition to a new owner before its owner
        has given it up."""
        wants = {m.member_id: decode_prefixed(ConsumerProtocolSubscription, m.metadata) for m in answer.members}
        given: dict[str, set[Partition]] = {member_id: set() for member_id in wants}
        owner = {
            (topic.topic, number): member_id
            for member_id, wanted in wants.items()
            for topic in wanted.owned_partitions
            for number in topic.partitions
            if topic.topic in wanted.topics
        }
        image = self.node.controller.image
        self.led_for = self._partition_counts({topic for wanted in wants.values() for topic in wanted.topics})
        topics = sorted({topic for wanted in wants.values() for topic in wanted.topics} & image.topics.keys())
        for topic in topics:
            readers = sorted(member_id for member_id, wanted in wants.items() if topic in wanted.topics)
            for number in sorted(image.topics[topic].partitions):
                target = readers[number % len(readers)]
                if owner.get((topic, number), target) == target:
                    given[target].add((topic, number))
        return given

    def _take_sync(self) -> ErrorCode:
        assert self.syncing is not None
        answer = self.syncing.response
        self.syncing = None
        if answer.error_code:
            return self._refused(ErrorCode(answer.error_code))
        assigned = decode_prefixed(ConsumerProtocolAssignment, answer.assignment) if answer.assignment else None
        now = {
            (topic.topic, number)
            for topic in (assigned.assigned_partitions if assigned is not None else ())
            for number in topic.partitions
        }
        self.must_join = self.is_cooperative and not self.reads <= now
        self.reads = now
        return ErrorCode.NONE

    def beat(self) -> ErrorCode:
        """Send a heartbeat, and obey the answer."""
        request = HeartbeatRequest(
            group_id=self.group_id,
            generation_id=self.generation,
            member_id=self.member_id,
            group_instance_id=self.instance_id,
        )
        code = ErrorCode(self.node.send(request, _HEARTBEAT_VERSION).response.error_code)
        return self._refused(code) if code else code

    def _refused(self, code: ErrorCode) -> ErrorCode:
        self.must_join = True
        if code in (ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.FENCED_INSTANCE_ID):
            self.member_id, self.generation, self.reads = "", -1, set()
        elif code is ErrorCode.ILLEGAL_GENERATION:
            self.generation, self.reads = -1, set()
        return code

    def leave(self) -> ErrorCode:
        """Leave for good."""
        identity = MemberIdentity(member_id=self.member_id, group_instance_id=self.instance_id)
        request = LeaveGroupRequest(group_id=self.group_id, members=(identity,))
        answer = self.node.send(request, _LEAVE_VERSION).response
        self.stop()
        return ErrorCode(answer.error_code or answer.members[0].error_code)

    def stop(self) -> None:
        """End without a request."""
        self.member_id, self.generation, self.reads, self.must_join = "", -1, set(), True
        self.joining = self.syncing = None

    def partitions(self, topic: str = "orders") -> set[int]:
        """The partitions of a topic that it reads."""
        return {number for name, number in self.reads if name == topic}


def _on_the_wire(partitions: set[Partition]) -> tuple[ConsumerTopicPartitions, ...]:
    return tuple(
        ConsumerTopicPartitions(topic=topic, partitions=tuple(sorted(n for name, n in partitions if name == topic)))
        for topic in sorted({name for name, _ in partitions})
    )
