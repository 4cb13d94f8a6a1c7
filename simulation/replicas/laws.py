"""Laws of the copies of a partition, checked after every event.

- "committed is for ever": what some leader has had below its high watermark never becomes something else.
- "a leader has everything committed": each leader has every record that was ever committed.
- "copies agree below the high watermark": whatever a replica has below its own high watermark is what is committed.
- "a high watermark is on the disk": under flushed durability; the records below survive a crash.
- "the high watermark rises": on one replica, for as long as its process lives, unless an election was not clean.
- "committed is on enough disks": when a leader's high watermark passes a record, the record is flushed on as many of
  its in-sync replicas as min.insync.replicas asks for, or these replicas will find it after a crash.
- "in sync or eligible has everything committed": at every moment, a broker that is up and is in sync or eligible in the
  controller's image has every record that was ever committed: it may be the next leader.
- "a silent replica does not join": its leader proposes to add only replicas that asked within replica.lag.time.max.ms.
- "a disk that keeps its promises loses nothing": under flushed durability a copy in which no bit has flipped never
  reports a loss, whatever the power cuts.
- The laws of consumers: see `replicas.consumer`.
- "acknowledged is committed": a producer with acks=all gets success for committed records, at these offsets.
- "a producer that keeps order is never out of order": when its next batch comes, its acknowledged batches are there.
"""

from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any, Final, NamedTuple

from simulation.harness.breach import Breach
from simulation.harness.world import Life
from simulation.replicas.node import ReplicaNode
from tailrace.metadata.commands import AlterPartition, InSyncChange
from tailrace.metadata.image import EMPTY_IMAGE, ClusterImage
from tailrace.model.errors import ErrorCode
from tailrace.model.ids import BrokerId, TopicId
from tailrace.model.partitions import PartitionState, TopicPartition
from tailrace.protocol.messages.fetch import FetchResponse
from tailrace.protocol.records.batch import iter_batches
from tailrace.replication.partition import Partition
from tailrace.storage import ReadLimits

_REDIRECT: Final = "a redirect goes to a replica that can serve"


class PlacedBatch(NamedTuple):
    """A batch at a known base offset: its end, its leader epoch and its checksum."""

    end_offset: int
    leader_epoch: int
    crc: int


class ReplicaLaws:
    """Sees every node, and remembers what was committed."""

    def __init__(self, *, min_in_sync: int, is_flushed: bool, lag_ms: int, sometimes: Counter[str]) -> None:
        self.nodes: list[ReplicaNode] = []
        self.image: Callable[[], ClusterImage] = lambda: EMPTY_IMAGE
        """The image that is agreed on, at every moment."""
        self.sometimes = sometimes
        self.committed: dict[TopicPartition, dict[int, PlacedBatch]] = {}
        """The committed batches of each partition by base offset."""
        self.committed_end: dict[TopicPartition, int] = {}
        self.news = 0
        """The number of times that more was committed."""
        self.leaders: set[tuple[TopicPartition, int, int]] = set()
        """(partition, leader epoch, broker) of every leadership."""
        self.damaged: set[tuple[BrokerId, TopicPartition]] = set()
        """Copies in which a bit has flipped."""
        self._min_in_sync = min_in_sync
        self._is_flushed = is_flushed
        self._lag_ms = lag_ms
        self._compared: set[tuple[TopicPartition, int, Life]] = set()
        """(partition, partition epoch, life) of the copies that may lead and were compared with what is committed."""
        self._proposed: set[tuple[Life, InSyncChange]] = set()
        self._steps: dict[BrokerId, int] = {}
        self._known_image = EMPTY_IMAGE
        self._may_lead: dict[BrokerId, list[tuple[TopicPartition, PartitionState]]] = {}
        """The partitions that each broker may lead, in the known image."""
        self._has_news = False
        """Whether more is committed than at the last check of the copies that may lead."""
        self._seen: dict[Partition, int] = {}  # high watermark, and so what was checked
        self._looked_at: dict[Partition, tuple[object, ...]] = {}
        """The `_present` values of each partition at the last check."""
        self._counts: dict[BrokerId, tuple[int, int]] = {}
        """The number of partitions that each node had at the last check, and the number of its lost partitions."""
        self._sizes: dict[Partition, tuple[int, int]] = {}
        self._checked_leaders: set[tuple[TopicPartition, int, Life]] = set()

    def check(self) -> None:
        """Check the laws after an event, on the nodes that have acted since the last check. Raises Breach."""
        steps = {node.node_id: node.steps for node in self.nodes}
        image = self.image()
        if steps == self._steps and image is self._known_image and not self._has_news:
            return
        acted = {node_id for node_id, count in steps.items() if count != self._steps.get(node_id)}
        self._steps = steps
        for node in self.nodes:
            if node.node_id not in acted:
                continue
            lost = node.failures.lost_replicas if node.is_up and self._is_flushed else ()
            for name in lost:
                if (node.node_id, name) not in self.damaged:
                    raise Breach("a disk that keeps its promises loses nothing", f"{node.node_id} has lost {name}")
            if node.is_up and node.is_serving:
                if not self._look_at_all(node, len(lost)):
                    acted.discard(node.node_id)
                if not self.sometimes["a follower rests"]:
                    self.sometimes["a follower rests"] += any(map(_has_resting_follower, node.table))
                self.sometimes["session evicted"] += node.broker.fetch_sessions.cache.evictions > 0
        if image is not self._known_image or self._has_news:
            if image is not self._known_image:
                self._may_lead = _may_lead(image)
            self._known_image, self._has_news = image, False
            acted = {node.node_id for node in self.nodes}
        for node in self.nodes:
            if node.node_id in acted and node.is_up and node.is_serving:  # else the law looks when the node is back
                for name, state in self._may_lead.get(node.node_id, ()):
                    self._check_eligible_leader(name, state, node)

    def _check_eligible_leader(self, name: TopicPartition, state: PartitionState, node: ReplicaNode) -> None:
        end_offset = self.committed_end.get(name, 0)
        if not end_offset:
            return
        partition = node.table.find(*name)
        is_whole = partition is not None and partition.log.log_end_offset >= end_offset
        key = (name, state.partition_epoch, node.life)
        if (is_whole and key in self._compared) or node.failures.is_lost(name):
            return  # it was looked at, or is about to leave
        if partition is not None and is_whole:
            self._compared.add(key)
            is_whole = self._missing(partition) is None
        if not is_whole:
            raise Breach(
                "in sync or eligible has everything committed",
                f"{name} on {node.node_id}, in sync {state.in_sync_replicas}, eligible"
                f" {state.eligible_leader_replicas} in partition epoch {state.partition_epoch}: {end_offset} is"
                f" committed, and there is {None if partition is None else partition.log.log_end_offset}",
            )

    def submitted(self, node: ReplicaNode, command: Any, now_ms: int) -> None:
        """Check a command that a node sends to the controller."""
        for change in command.changes if isinstance(command, AlterPartition) else ():
            if change.leaving is not None or (node.life, change) in self._proposed:
                continue  # the command is repeated until its outcome is known, whatever has become of the members
            self._proposed.add((node.life, change))
            partition = next((held for held in node.table if _is_of(held, change)), None)
            if partition is None or partition.state is None:
                continue  # its log does not open, and the node says that it leaves
            for member in change.in_sync_replicas:
                heard_ms = node.heard_ms.get(member.broker_id)
                is_new = member.broker_id not in (node.node_id, *partition.state.in_sync_replicas)
                if is_new and (heard_ms is None or now_ms - heard_ms > self._lag_ms):
                    raise Breach(
                        "a silent replica does not join",
                        f"{partition.topic_partition}: {node.node_id} had contact with {member.broker_id} at {heard_ms}"
                        f", and proposes it at {now_ms}",
                    )

    def _look_at_all(self, node: ReplicaNode, lost: int) -> bool:
        """Whether a partition of the node has changed since the last look, or a partition has gone or is lost."""
        is_changed, count = False, 0
        for partition in node.table:
            count += 1
            if self._looked_at.get(partition) != _present(partition):
                self._look_at(node, partition)
                is_changed = True
        known = self._counts.get(node.node_id)
        self._counts[node.node_id] = (count, lost)
        return is_changed or self._counts[node.node_id] != known

    def _look_at(self, node: ReplicaNode, partition: Partition) -> None:
        present = _present(partition)
        self._look_closely(node, partition)
        self._looked_at[partition] = present

    def _look_closely(self, node: ReplicaNode, partition: Partition) -> None:
        name, high_watermark = partition.topic_partition, partition.high_watermark
        if self._is_flushed and high_watermark > partition.log.flushed_offset:
            raise Breach("a high watermark is on the disk", f"{name} on {node.node_id}: {high_watermark}")
        before = self._seen.get(partition, 0)
        if partition.is_leader:
            self._look_at_leader(node, partition)
        self._note(partition)
        if high_watermark == before:
            return
        if high_watermark < before:
            raise Breach("the high watermark rises", f"{name} on {node.node_id} fell from {before} to {high_watermark}")
        start = max(before, partition.log.log_start_offset)
        if partition.is_leader and high_watermark > self.committed_end.get(name, 0):
            self._check_disks(node, partition)
        committed = self.committed.setdefault(name, {})
        for base_offset, batch in batches_between(partition, start, high_watermark):
            known = committed.get(base_offset)
            if known is None and not partition.is_leader and batch.end_offset > self.committed_end.get(name, 0):
                raise Breach(
                    "copies agree below the high watermark", f"{name} on {node.node_id}: {base_offset} is not committed"
                )
            if known is None:
                committed[base_offset] = batch
            elif known != batch:
                law = "committed is for ever" if partition.is_leader else "copies agree below the high watermark"
                raise Breach(law, f"{name} on {node.node_id} at {base_offset}: {batch} is not {known}")
        self._seen[partition] = high_watermark
        if partition.is_leader:
            self.committed_end[name] = max(self.committed_end.get(name, 0), high_watermark)
            self._has_news = True
            self.news += 1

    def _note(self, partition: Partition) -> None:
        """Note the notable states that were reached."""
        end_offset = partition.log.log_end_offset
        in_sync = len(partition.state.in_sync_replicas) if partition.state is not None and partition.is_leader else 0
        end_before, in_sync_before = self._sizes.get(partition, (0, 0))
        if (end_offset, in_sync) != (end_before, in_sync_before):
            self._sizes[partition] = (end_offset, in_sync)
            self.sometimes["log cut"] += end_offset < end_before
            is_waited_for = partition.state is not None and bool(partition.state.eligible_leader_replicas)
            self.sometimes["an eligible leader"] += is_waited_for
            if in_sync and in_sync_before:
                self.sometimes["in-sync replicas shrunk"] += in_sync < in_sync_before
                self.sometimes["in-sync replicas grew"] += in_sync > in_sync_before

    def _look_at_leader(self, node: ReplicaNode, partition: Partition) -> None:
        name, epoch = partition.topic_partition, partition.leader_epoch
        if (name, epoch, node.life) in self._checked_leaders:
            return
        self._checked_leaders.add((name, epoch, node.life))
        others = {leader for where, led, leader in self.leaders if (where, led) == (name, epoch)}
        self.leaders.add((name, epoch, node.node_id))
        if others - {node.node_id}:
            raise Breach("one leader per epoch", f"{name} in {epoch}: {sorted(others)} and {node.node_id}")
        self.check_complete(node, partition)

    def check_complete(self, node: ReplicaNode, partition: Partition) -> None:
        """Check that the log has everything committed. Only for a leader of the newest epoch."""
        name = partition.topic_partition
        newest = max(led for where, led, _ in self.leaders if where == name)
        if partition.leader_epoch < newest:
            return
        if (missing := self._missing(partition)) is not None:
            raise Breach(
                "a leader has everything committed",
                f"{name} on {node.node_id} in epoch {partition.leader_epoch}, {missing}",
            )

    def _missing(self, partition: Partition) -> str | None:
        """The first difference between a log and what is committed; None if nothing above its start is missing."""
        start = partition.log.log_start_offset
        found = dict(batches_between(partition, start, partition.log.log_end_offset))
        for base_offset, batch in self.committed.get(partition.topic_partition, {}).items():
            if base_offset >= start and found.get(base_offset) != batch:
                return f"at {base_offset}: {found.get(base_offset)} is not {batch}"
        return None

    def _check_disks(self, leader: ReplicaNode, partition: Partition) -> None:
        state, end_offset = partition.state, partition.high_watermark
        assert state is not None
        having = [node.node_id for node in self.nodes if self._has_durably(node, partition, end_offset)]
        safe = [replica for replica in having if replica in state.replicas]
        if len(safe) < min(self._min_in_sync, len(state.replicas)):
            raise Breach(
                "committed is on enough disks",
                f"{partition.topic_partition} led by {leader.node_id} up to {end_offset}: only on {safe}",
            )

    def _has_durably(self, node: ReplicaNode, led: Partition, end_offset: int) -> bool:
        if not (node.is_up and node.is_serving):
            return True  # the law looks when the node is back: nothing committed may be missing then
        partition = node.table.find(*led.topic_partition)
        if partition is None:
            return False
        log = partition.log
        return (log.flushed_offset if self._is_flushed else log.log_end_offset) >= end_offset

    def fetched(self, leader: ReplicaNode, response: FetchResponse) -> None:
        """Check an answer to a follower that leaves, with high watermarks that have perhaps risen in this step."""
        topics = self.image().topics
        names = {topic.topic_id: name for name, topic in topics.items()}
        for topic in response.responses:
            for data in topic.partitions:
                partition = leader.table.find(names.get(TopicId(topic.topic_id), ""), data.partition_index)
                if partition is not None and partition.is_leader:
                    self.note_committed(leader, partition)

    # Consumers

    def note_committed(self, leader: ReplicaNode, partition: Partition) -> None:
        """Note committed records: a leader sends records below its high watermark, which has perhaps risen in this
        step."""
        if leader.is_up and leader.is_serving:
            self._look_at(leader, partition)

    def redirected(self, leader: ReplicaNode, partition: Partition, target: ReplicaNode, offset: int) -> None:
        """A leader sends a consumer that reads at this offset to another broker. Raises Breach."""
        name, state = partition.topic_partition, partition.state
        assert state is not None
        detail = f"{name} at {offset} from {leader.node_id} to {target.node_id}"
        if target.node_id not in state.in_sync_replicas:
            raise Breach(_REDIRECT, f"{detail}: in sync are {state.in_sync_replicas}")
        known = leader.image.brokers.get(target.node_id)
        is_known = known is not None and target.is_serving and known.broker_epoch == target.broker_epoch
        copy = target.table.find(*name) if is_known else None
        if copy is None or target.failures.is_lost(name) or (target.node_id, name) in self.damaged:
            return  # the replica has started again or failed since, and the leader does not know yet
        leadership = partition.in_sync.leadership
        if leadership is not None and leadership.replicas[target.node_id].sent_high_watermark >= offset:
            return  # without a session, before Fetch v18: a follower is believed to have had the last answer
        end_offset = min(copy.high_watermark, copy.log.log_end_offset)
        if not copy.log.log_start_offset <= offset <= end_offset:
            raise Breach(_REDIRECT, f"{detail}, which serves {copy.log.log_start_offset} to {end_offset}")

    def out_of_order(self, name: TopicPartition, code: ErrorCode) -> None:
        """Check the error of a producer that its batch does not follow its last batch, which was acknowledged."""
        raise Breach("a producer that keeps order is never out of order", f"{name}: {code.name}")

    def acknowledged(self, name: TopicPartition, base_offset: int, crc: int) -> None:
        """Check the acknowledgement of a producer's batch."""
        batch = self.committed.get(name, {}).get(base_offset)
        if batch is None or batch.crc != crc:
            raise Breach("acknowledged is committed", f"{name} at {base_offset}: {batch}")


def _may_lead(image: ClusterImage) -> dict[BrokerId, list[tuple[TopicPartition, PartitionState]]]:
    """The partitions that each broker is in sync or eligible for."""
    found: dict[BrokerId, list[tuple[TopicPartition, PartitionState]]] = {}
    for topic in image.topics.values():
        for number, state in topic.partitions.items():
            for broker_id in (*state.in_sync_replicas, *state.eligible_leader_replicas):
                found.setdefault(broker_id, []).append((TopicPartition(topic.name, number), state))
    return found


def _present(partition: Partition) -> tuple[object, ...]:
    """The values that the laws of a partition depend on."""
    log = partition.log
    return partition.high_watermark, log.flushed_offset, log.log_end_offset, partition.is_leader, partition.state


def _has_resting_follower(partition: Partition) -> bool:
    leadership = partition.in_sync.leadership
    return leadership is not None and any(replica._visits for replica in leadership.replicas.values())


def _is_of(partition: Partition, change: InSyncChange) -> bool:
    return (partition.topic_id, partition.topic_partition.partition) == (change.topic_id, change.partition)


def batches_between(partition: Partition, start: int, end: int) -> Iterable[tuple[int, PlacedBatch]]:
    """The batches of a log from one offset to another, by base offset."""
    offset = start
    while offset < end:
        result = partition.log.read(ReadLimits(offset, 1 << 20), end)
        if not result.size_bytes:
            return
        for chunk in result.records:
            for _, header in iter_batches(chunk):
                yield header.base_offset, PlacedBatch(header.end_offset, header.partition_leader_epoch, header.crc)
                offset = header.end_offset
