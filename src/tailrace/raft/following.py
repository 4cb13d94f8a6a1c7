"""A follower or observer: fetches, appends, truncates where the logs diverge, and loads a snapshot if needed.

One request is open at a time, and the next leaves when the whole last answer is on disk: the fetch offset is
the flushed end, because the leader takes the offset as an acknowledgement.
"""

from tailrace.model.errors import ErrorCode
from tailrace.raft.effects import (
    AppendFetched,
    DiscardSnapshotPart,
    InstallSnapshot,
    LoadSnapshot,
    Truncate,
    WriteSnapshotPart,
)
from tailrace.raft.elections import Elections, fetch_request
from tailrace.raft.events import AppendRejected, LogAppended, SnapshotInstalled, SnapshotRejected
from tailrace.raft.replica import RaftReplica
from tailrace.raft.roles import Follower, Role, SnapshotDownload
from tailrace.raft.rpc import (
    FetchRecords,
    FetchRecordsReply,
    FetchSnapshot,
    FetchSnapshotReply,
    LogEnd,
    SnapshotId,
)

DROPPED_SNAPSHOT = (
    ErrorCode.SNAPSHOT_NOT_FOUND,
    ErrorCode.POSITION_OUT_OF_RANGE,
    ErrorCode.NOT_LEADER_OR_FOLLOWER,
    ErrorCode.FENCED_LEADER_EPOCH,
    ErrorCode.UNKNOWN_LEADER_EPOCH,
)


class Following:
    """The behaviour of Follower."""

    def __init__(self, replica: RaftReplica, elections: Elections) -> None:
        self._replica = replica
        self._elections = elections

    # Time

    def poll(self, role: Follower, now_ms: int) -> None:
        """Fetch the next records, or stand for election when the leader is silent."""
        replica = self._replica
        if role.is_appending or replica.installing is not None:
            return  # the host is about to change the log: the next fetch offset is not known
        if role.fetch_deadline_ms <= now_ms:
            self._lose_leader(role, now_ms)
        elif replica.may_fetch and replica.requests.is_ready(role.leader_id, now_ms):
            if role.download is not None:
                replica.ask(role.leader_id, self._snapshot_request(role.download), now_ms)
            else:
                replica.ask(role.leader_id, fetch_request(replica, replica.config.fetch_max_wait_ms), now_ms)

    def _lose_leader(self, role: Follower, now_ms: int) -> None:
        replica = self._replica
        if replica.may_stand:
            self._elections.stand(now_ms)
        else:
            replica.unattached(replica.epoch, now_ms)

    def next_deadline_ms(self, role: Follower) -> int | None:
        if role.is_appending or self._replica.installing is not None:
            return None
        if not self._replica.is_flushed:
            return role.fetch_deadline_ms
        return min(role.fetch_deadline_ms, self._replica.requests.next_ms(role.leader_id))

    def left(self, before: Role) -> None:
        """Discard a partly fetched snapshot of the role that has just been left."""
        if isinstance(before, Follower) and before.download is not None:
            self._replica.outbox.add(DiscardSnapshotPart(before.download.id))

    def _heard(self, role: Follower, now_ms: int) -> None:
        role.has_fetched = True
        role.fetch_deadline_ms = now_ms + self._replica.fetch_timeout_ms()

    # Records

    def fetched(self, role: Follower, request: FetchRecords, response: FetchRecordsReply, now_ms: int) -> None:
        """Take the answer of this epoch's leader to our Fetch."""
        replica = self._replica
        if response.error is not ErrorCode.NONE or response.leader_id != role.leader_id:
            replica.requests.back_off(role.leader_id, now_ms)
            return
        self._heard(role, now_ms)
        if request.fetch_offset != replica.end_offset or request.last_fetched_epoch != replica.last_epoch:
            return  # the request was made before the log changed
        if response.diverging is not None:
            self._cut(role, response.diverging, now_ms)
        elif response.snapshot_id is not None:
            self._begin_download(role, response.snapshot_id, now_ms)
        else:
            self._take(role, response)

    def _cut(self, role: Follower, diverging: LogEnd, now_ms: int) -> None:
        """Truncate to where our log and the leader's may still be the same."""
        replica = self._replica
        log = replica.log
        own = log.end_offset_for_epoch(diverging.epoch)
        end_offset = log.log_start_offset if own is None else min(own.offset, diverging.offset)
        if own is not None and own.epoch < diverging.epoch:
            # The leader's offset may be inside of a batch of ours. Its next answer tells where our epoch diverges.
            end_offset = own.offset
        committed = 0 if replica.high_watermark is None else replica.high_watermark
        assert committed <= end_offset, (
            f"the leader of epoch {replica.epoch} would have us cut the log at {end_offset}, which is committed up to "
            f"{committed} and ends at {replica.end_offset}"
        )
        if end_offset >= replica.end_offset:
            replica.requests.back_off(role.leader_id, now_ms)  # an answer without sense: the logs do not diverge there
            return
        replica.outbox.add(Truncate(end_offset))
        replica.log_ends_at(end_offset, self._epoch_before(end_offset))
        replica.voters.truncate(end_offset)

    def _epoch_before(self, end_offset: int) -> int:
        """The epoch of the record before this offset; at the log start, the epoch of the snapshot that ends there."""
        log = self._replica.log
        if end_offset <= log.log_start_offset:
            return next((snapshot.id.epoch for snapshot in log.snapshots if snapshot.id.end_offset == end_offset), 0)
        epoch = self._replica.last_epoch
        while True:
            below = log.end_offset_for_epoch(epoch - 1)
            if below is None or below.offset < end_offset:
                found = log.end_offset_for_epoch(epoch)
                assert found is not None
                return found.epoch
            epoch = below.epoch

    def _take(self, role: Follower, response: FetchRecordsReply) -> None:
        replica = self._replica
        role.leader_high_watermark = response.high_watermark
        role.leader_log_start_offset = response.log_start_offset
        if response.records:
            role.is_appending = True
            replica.outbox.add(AppendFetched(replica.end_offset, replica.epoch, response.records))
        else:
            self._commit(role)

    def appended(self, event: LogAppended) -> None:
        """Note that the host has appended the fetched records."""
        replica = self._replica
        role = replica.role
        assert isinstance(role, Follower), "nothing was fetched"
        assert role.is_appending, "nothing was fetched"
        assert event.end_offset > replica.end_offset, f"{event.end_offset} after {replica.end_offset}"
        role.is_appending = False
        replica.end_offset = event.end_offset
        replica.last_epoch = event.last_epoch
        for voters in event.voters:
            replica.voters.append(voters)
        replica.flush()
        self._commit(role)

    def rejected(self, event: AppendRejected, now_ms: int) -> None:
        """Fetch the records again, since they were damaged on their way."""
        role = self._replica.role
        assert isinstance(role, Follower), "nothing was fetched"
        role.is_appending = False
        self._back_off_damaged(role, now_ms)

    def _back_off_damaged(self, role: Follower, now_ms: int) -> None:
        """Pause before the next fetch: damaged bytes cost both sides as much as good bytes, and a damaged disk sends
        the same bytes again."""
        self._replica.requests.back_off(role.leader_id, now_ms, self._replica.config.damaged_backoff_ms)

    def _commit(self, role: Follower) -> None:
        committed = min(role.leader_high_watermark, self._replica.end_offset)
        if committed > 0:
            self._replica.commit(committed)

    # Snapshots

    def _begin_download(self, role: Follower, snapshot_id: SnapshotId, now_ms: int) -> None:
        """Fetch the snapshot, and no records meanwhile: the leader's log starts above the end of our log."""
        replica = self._replica
        known = 0 if replica.high_watermark is None else replica.high_watermark
        if snapshot_id.end_offset < 0 or snapshot_id.epoch < 0 or snapshot_id.end_offset < known:
            replica.requests.back_off(role.leader_id, now_ms)  # no use: the high watermark here is above its end
            return
        role.download = SnapshotDownload(snapshot_id)

    def _snapshot_request(self, download: SnapshotDownload) -> FetchSnapshot:
        replica = self._replica
        return FetchSnapshot(
            cluster_id=replica.cluster_id,
            replica=replica.key,
            leader_epoch=replica.epoch,
            snapshot_id=download.id,
            position=download.position,
            max_bytes=replica.config.snapshot_max_bytes,
        )

    def fetched_snapshot(
        self, role: Follower, request: FetchSnapshot, response: FetchSnapshotReply, now_ms: int
    ) -> None:
        """Take the answer of this epoch's leader to our FetchSnapshot."""
        replica = self._replica
        download = role.download
        if download is None or (request.snapshot_id, request.position) != (download.id, download.position):
            return
        if response.error in DROPPED_SNAPSHOT or (response.error is ErrorCode.NONE and response.snapshot_id is None):
            # An answer without a snapshot (Kafka: a negative id) means too that the leader has dropped this snapshot.
            # "The follower can rediscover the new snapshot by sending another Fetch request."
            self._drop_download(role, download)
            replica.requests.back_off(role.leader_id, now_ms)
        elif response.error is not ErrorCode.NONE or not _continues(download, response):
            replica.requests.back_off(role.leader_id, now_ms)
        else:
            self._heard(role, now_ms)
            self._take_part(role, download, response)

    def _take_part(self, role: Follower, download: SnapshotDownload, response: FetchSnapshotReply) -> None:
        outbox = self._replica.outbox
        outbox.add(WriteSnapshotPart(download.id, download.position, response.data))
        download.position += len(response.data)
        if download.position == response.size:
            role.download = None
            self._replica.installing = download.id
            outbox.add(InstallSnapshot(download.id))

    def _drop_download(self, role: Follower, download: SnapshotDownload) -> None:
        role.download = None
        self._replica.outbox.add(DiscardSnapshotPart(download.id))

    def installed(self, event: SnapshotInstalled, now_ms: int) -> None:
        """Go on at the end of the snapshot, which has replaced the log. Any leader may send the next records: a
        snapshot has committed records only."""
        replica = self._replica
        self._end_installation(event.snapshot_id, now_ms)
        replica.log_ends_at(*event.snapshot_id)
        replica.flushed_end_offset = event.snapshot_id.end_offset
        replica.voters.load(event.snapshot_id.end_offset, event.voters)
        replica.outbox.add(LoadSnapshot(event.snapshot_id))
        replica.commit(event.snapshot_id.end_offset)

    def refused(self, event: SnapshotRejected, now_ms: int) -> None:
        """Forget the damaged snapshot; the answer to the next Fetch names a snapshot again, or has records."""
        self._end_installation(event.snapshot_id, now_ms)
        if isinstance(self._replica.role, Follower):
            self._back_off_damaged(self._replica.role, now_ms)

    def _end_installation(self, snapshot_id: SnapshotId, now_ms: int) -> None:
        replica = self._replica
        assert replica.installing == snapshot_id, f"{replica.installing} is being installed, not {snapshot_id}"
        replica.installing = None
        if isinstance(replica.role, Follower):
            replica.role.fetch_deadline_ms = now_ms + replica.fetch_timeout_ms()


def _continues(download: SnapshotDownload, response: FetchSnapshotReply) -> bool:
    """Whether the response has the next bytes of this snapshot: at least one byte unless the download is complete."""
    end = response.position + len(response.data)
    return (
        response.snapshot_id == download.id
        and response.position == download.position
        and end <= response.size
        and (len(response.data) > 0 or end == response.size)
    )
