"""A leader's answers to fetches: records, the offset where the logs diverge, or the id of a snapshot; and the bytes of
snapshots."""

from collections.abc import Callable, Sequence

from tailrace.model.errors import ErrorCode
from tailrace.raft.effects import ReadLog, ReadSnapshot, SendResponse
from tailrace.raft.leadership import RaftLeadership, leader_only_fault
from tailrace.raft.ports import SnapshotFile
from tailrace.raft.replica import RaftReplica
from tailrace.raft.roles import Leader, ParkedFetch
from tailrace.raft.rpc import (
    FetchRecords,
    FetchRecordsReply,
    FetchSnapshot,
    FetchSnapshotReply,
    LogEnd,
    SnapshotId,
)
from tailrace.raft.snapshots import Diverging, NeedsSnapshot, Valid, fair_shares, validate_position


class Serving:
    """The leader's side of Fetch (1) and FetchSnapshot (59)."""

    def __init__(self, replica: RaftReplica, leadership: RaftLeadership) -> None:
        self._replica = replica
        self._leadership = leadership

    # Fetch

    def answer_fetch(self, token: object, request: FetchRecords, now_ms: int) -> None:
        """Answer a fetch when there are records or a higher high watermark for the reader, or when the reader's maximum
        wait has passed."""
        replica = self._replica
        fault = leader_only_fault(replica, request.cluster_id, request.leader_epoch)
        if fault is ErrorCode.NONE and _is_impossible(request, replica.epoch):
            fault = ErrorCode.INVALID_REQUEST
        leader = replica.role
        if fault is not ErrorCode.NONE or not isinstance(leader, Leader):
            replica.answer(token, self._response(fault))
            return
        self._contacted(leader, request, now_ms)
        match validate_position(replica.log, request.fetch_offset, request.last_fetched_epoch):
            case Diverging(end):
                replica.answer(token, self._response(ErrorCode.NONE, diverging=end))
            case NeedsSnapshot(snapshot_id):
                leader.served[snapshot_id] = now_ms
                replica.answer(token, self._response(ErrorCode.NONE, snapshot_id=snapshot_id))
            case Valid():
                self._record_progress(leader, request, now_ms)
                self._read_or_park(leader, token, request, now_ms)

    def _contacted(self, leader: Leader, request: FetchRecords | FetchSnapshot, now_ms: int) -> None:
        if request.replica.id >= 0:
            key = self._replica.voters.current.key_of(request.replica)
            leader.replicas.of(key).contacted(now_ms)

    def _record_progress(self, leader: Leader, request: FetchRecords, now_ms: int) -> None:
        if request.replica.id < 0:
            return
        replica = self._replica
        progress = leader.replicas.of(replica.voters.current.key_of(request.replica))
        if progress.fetched(request.fetch_offset, replica.end_offset, now_ms) and self._leadership.advance(leader):
            self.answer_parked(leader)

    def _read_or_park(self, leader: Leader, token: object, request: FetchRecords, now_ms: int) -> None:
        if self._has_news(request) or request.max_wait_ms <= 0:
            self._send(token, request)
        else:
            if request.replica.id >= 0:  # a new fetch replaces the parked fetch
                self._answer_parked(leader, lambda fetch: fetch.request.replica == request.replica)
            leader.parked.append(ParkedFetch(token, request, now_ms + request.max_wait_ms))

    def _has_news(self, request: FetchRecords) -> bool:
        replica = self._replica
        known = replica.high_watermark
        return request.fetch_offset < replica.end_offset or (known is not None and request.high_watermark < known)

    def _send(self, token: object, request: FetchRecords) -> None:
        replica = self._replica
        read = None
        if request.fetch_offset < replica.end_offset:
            read = ReadLog(request.fetch_offset, min(request.max_bytes, replica.config.fetch_max_bytes))
        replica.outbox.send(SendResponse(token, self._response(ErrorCode.NONE), read))

    def _response(
        self, error: ErrorCode, diverging: LogEnd | None = None, snapshot_id: SnapshotId | None = None
    ) -> FetchRecordsReply:
        replica = self._replica
        known = error is ErrorCode.NONE
        return FetchRecordsReply(
            error=error,
            leader_id=replica.leader_id,
            leader_epoch=replica.epoch,
            high_watermark=replica.high_watermark if known and replica.high_watermark is not None else -1,
            log_start_offset=replica.log.log_start_offset if known else -1,
            diverging=diverging,
            snapshot_id=snapshot_id,
        )

    def answer_parked(self, leader: Leader) -> None:
        """Answer the parked fetches that wait for new records or for a higher high watermark."""
        self._answer_parked(leader, lambda fetch: self._has_news(fetch.request))

    def poll(self, leader: Leader, now_ms: int) -> None:
        """Answer the parked fetches whose maximum wait has passed."""
        self._answer_parked(leader, lambda fetch: fetch.deadline_ms <= now_ms)

    def next_deadline_ms(self, leader: Leader) -> int | None:
        return min((fetch.deadline_ms for fetch in leader.parked), default=None)

    def _answer_parked(self, leader: Leader, is_due: Callable[[ParkedFetch], bool]) -> None:
        due = [fetch for fetch in leader.parked if is_due(fetch)]
        if due:
            leader.parked = [fetch for fetch in leader.parked if not is_due(fetch)]
        for fetch in due:
            self._send(fetch.token, fetch.request)

    # FetchSnapshot

    def answer_fetch_snapshot(self, token: object, request: FetchSnapshot, now_ms: int) -> None:
        """Answer with bytes of the snapshot from the position on, within the request's limit and within ours."""
        replica = self._replica
        fault = leader_only_fault(replica, request.cluster_id, request.leader_epoch)
        leader = replica.role
        if fault is not ErrorCode.NONE or not isinstance(leader, Leader):
            self._refuse_snapshot(token, request, fault)
            return
        self._contacted(leader, request, now_ms)
        snapshot = self._find(request.snapshot_id)
        if snapshot is None:
            self._refuse_snapshot(token, request, ErrorCode.SNAPSHOT_NOT_FOUND)
        elif not 0 <= request.position <= snapshot.size_bytes:
            self._refuse_snapshot(token, request, ErrorCode.POSITION_OUT_OF_RANGE)
        else:
            leader.served[snapshot.id] = now_ms
            self._send_part(token, request, snapshot)

    def shares(self, positions: Sequence[tuple[SnapshotId, int]], max_bytes: int) -> list[int]:
        """The bytes of one answer that each snapshot, from its position on, may have (`fair_shares`)."""
        most = min(max_bytes, self._replica.config.snapshot_max_bytes)
        return fair_shares([self._remaining(*position) for position in positions], most)

    def _remaining(self, snapshot_id: SnapshotId, position: int) -> int:
        snapshot = self._find(snapshot_id)
        return snapshot.size_bytes - position if snapshot is not None and 0 <= position <= snapshot.size_bytes else 0

    def _find(self, snapshot_id: SnapshotId) -> SnapshotFile | None:
        return next((snapshot for snapshot in self._replica.log.snapshots if snapshot.id == snapshot_id), None)

    def _refuse_snapshot(self, token: object, request: FetchSnapshot, error: ErrorCode) -> None:
        replica = self._replica
        response = FetchSnapshotReply(
            error=error,
            leader_id=replica.leader_id,
            leader_epoch=replica.epoch,
            snapshot_id=request.snapshot_id,
            position=request.position,
        )
        replica.answer(token, response)

    def _send_part(self, token: object, request: FetchSnapshot, snapshot: SnapshotFile) -> None:
        replica = self._replica
        most = max(0, min(request.max_bytes, replica.config.snapshot_max_bytes))
        size_bytes = min(most, snapshot.size_bytes - request.position)
        response = FetchSnapshotReply(
            leader_id=replica.leader_id,
            leader_epoch=replica.epoch,
            snapshot_id=snapshot.id,
            size=snapshot.size_bytes,
            position=request.position,
        )
        read = ReadSnapshot(snapshot.id, request.position, size_bytes) if size_bytes else None
        replica.outbox.send(SendResponse(token, response, read))


def _is_impossible(request: FetchRecords, epoch: int) -> bool:
    return request.max_wait_ms < 0 or request.fetch_offset < 0 or not 0 <= request.last_fetched_epoch <= epoch
