"""The group path of one node, from frame to `__consumer_offsets`, without sockets, threads and a real clock.

node = GroupPath("/data", files=SimulatedDisk(seed=1))
node.find_coordinator("g")
node.commit("g", "orders", 7).response
"""

from collections.abc import Mapping
from typing import Any, ClassVar

from tailrace.model.errors import ErrorCode
from tailrace.protocol.messages.groups import FindCoordinatorRequest
from tailrace.protocol.messages.membership import (
    JoinGroupRequest,
    JoinGroupRequestProtocol,
    JoinGroupResponse,
    SyncGroupRequest,
    SyncGroupRequestAssignment,
)
from tailrace.protocol.messages.offsets import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
    OffsetFetchResponse,
)
from tailrace.server.groups.host import GroupCoordinatorService
from tailrace.server.transactions.host import TransactionCoordinatorService
from testkit.nodes.admin_path import AdminPath
from testkit.nodes.data_path import Exchange

_NEWEST_COMMIT_BY_NAME = 9


class GroupPath(AdminPath):
    """A node that coordinates groups. Its defaults are those of `--dev`: four offsets partitions, no initial rebalance
    delay."""

    SETTINGS: ClassVar[Mapping[str, str]] = {
        "group.initial.rebalance.delay.ms": "0",
        "offsets.topic.num.partitions": "4",
        "offsets.topic.replication.factor": "1",
        "transaction.state.log.num.partitions": "4",
        "transaction.state.log.replication.factor": "1",
    }

    def find_coordinator(self, group_id: str, *, version: int = 4) -> ErrorCode:
        """Find the group's coordinator; the offsets topic is there and loaded afterwards, if flushes are immediate."""
        request = FindCoordinatorRequest(key=group_id, coordinator_keys=(group_id,))
        response = self.send(request, version).response
        return ErrorCode(response.coordinators[0].error_code if version >= 4 else response.error_code)

    def commit(
        self,
        group_id: str,
        topic: str,
        offset: int,
        *,
        partition: int = 0,
        generation_id: int = -1,
        member_id: str = "",
        metadata: str | None = "",
        version: int = _NEWEST_COMMIT_BY_NAME,
        same_turn: bool = False,
    ) -> Exchange:
        """Send OffsetCommit for one partition."""
        request = OffsetCommitRequest(
            group_id=group_id,
            generation_id_or_member_epoch=generation_id,
            member_id=member_id,
            topics=(
                OffsetCommitRequestTopic(
                    name=topic if version <= _NEWEST_COMMIT_BY_NAME else "",
                    topic_id=self.topic_id(topic) if version > _NEWEST_COMMIT_BY_NAME else bytes(16),
                    partitions=(
                        OffsetCommitRequestPartition(
                            partition_index=partition, committed_offset=offset, committed_metadata=metadata
                        ),
                    ),
                ),
            ),
        )
        return self.send(request, version, same_turn=same_turn)

    def committed(self, group_id: str, topic: str, *, partition: int = 0) -> int | ErrorCode:
        """The group's committed offset, -1 for none, or the error."""
        asked = OffsetFetchRequestTopics(name=topic, partition_indexes=(partition,))
        request = OffsetFetchRequest(groups=(OffsetFetchRequestGroup(group_id=group_id, topics=(asked,)),))
        response: OffsetFetchResponse = self.send(request, 8).response
        (group,) = response.groups
        if group.error_code:
            return ErrorCode(group.error_code)
        return group.topics[0].partitions[0].committed_offset

    def join(
        self, group_id: str, member_id: str = "", *, version: int = 9, protocol: str = "range", **options: Any
    ) -> Exchange:
        """Send JoinGroup."""
        request = JoinGroupRequest(
            group_id=group_id,
            session_timeout_ms=10_000,
            rebalance_timeout_ms=30_000,
            member_id=member_id,
            protocol_type="consumer",
            protocols=(JoinGroupRequestProtocol(name=protocol, metadata=b"topics"),),
            **options,
        )
        return self.send(request, version)

    def sync(
        self, group_id: str, member_id: str, generation_id: int, assignments: Mapping[str, bytes] | None = None
    ) -> Exchange:
        """Send SyncGroup."""
        request = SyncGroupRequest(
            group_id=group_id,
            generation_id=generation_id,
            member_id=member_id,
            protocol_type="consumer",
            protocol_name="range",
            assignments=tuple(
                SyncGroupRequestAssignment(member_id=name, assignment=assignment)
                for name, assignment in (assignments or {}).items()
            ),
        )
        return self.send(request, 5)

    def form_group(self, group_id: str) -> tuple[str, int]:
        """A stable group of one member, and its generation."""
        member_id: str = self.join(group_id).response.member_id
        joined: JoinGroupResponse = self.join(group_id, member_id).response
        synced = self.sync(group_id, member_id, joined.generation_id, {member_id: b"mine"})
        assert synced.response.error_code == ErrorCode.NONE
        return member_id, joined.generation_id

    @property
    def coordinators(self) -> GroupCoordinatorService:
        return self.broker.coordination.groups

    @property
    def transactions(self) -> TransactionCoordinatorService:
        return self.broker.coordination.transactions
