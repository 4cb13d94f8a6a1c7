"""Lines in the log of the active controller about committed changes of the cluster: once per cluster.

Brokers that are fenced, come back or leave; leaders, in-sync replicas and replicas of partitions; topics that are
created, altered and deleted. The lines of each kind are limited by `BoundedLines`, however many partitions a change
has.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Final

from tailrace.metadata.broker_commands import FenceSilentBroker
from tailrace.metadata.commands import ControllerCommand
from tailrace.metadata.derive import SLICE, Steps
from tailrace.metadata.image import (
    BrokerImage,
    ChangedPartition,
    ClusterImage,
    ConfigResource,
    ImageDelta,
    ResourceType,
)
from tailrace.model.ids import BrokerId
from tailrace.model.partitions import PartitionState
from tailrace.server.bounded_lines import BoundedLines
from tailrace.server.ports import Clock

_LONGEST: Final = 300
"""The most characters of a client's text in a line."""


class ChangeLog:
    """The log of one controller."""

    def __init__(self, clock: Clock) -> None:
        lines = {
            event: BoundedLines(event, clock=clock)
            for event in (
                "broker-fenced",
                "broker-unfenced",
                "broker-shutting-down",
                "broker-unregistered",
                "leader-changed",
                "isr-changed",
                "replicas-changed",
                "topic-created",
                "topic-altered",
                "topic-deleted",
                "config-altered",
            )
        }
        self._lines: Mapping[str, BoundedLines] = lines

    def steps(self, before: ClusterImage, image: ClusterImage, delta: ImageDelta, cause: "Cause") -> Steps[None]:
        """Log one change, some partitions in each step."""
        changed: list[tuple[ChangedPartition, PartitionState]] = []
        added: Counter[str] = Counter()
        for number, change in enumerate(delta.changed_partitions, 1):
            was = before.partition(*change.topic_partition)
            if was is None:
                added[change.topic_partition.topic] += 1
            else:
                changed.append((change, was))
            if number % SLICE == 0:
                yield
        for broker_id in delta.changed_brokers:
            self._broker(broker_id, before.brokers.get(broker_id), image.brokers.get(broker_id), changed, cause)
        self._topics(before, delta, cause, added)
        self._configs(before, image, delta.changed_configs, cause)
        for number, (change, was) in enumerate(changed, 1):
            self._partition(change, was)
            if number % SLICE == 0:
                yield

    def _broker(
        self,
        broker_id: BrokerId,
        was: BrokerImage | None,
        now: BrokerImage | None,
        changed: Iterable[tuple[ChangedPartition, PartitionState]],
        cause: "Cause",
    ) -> None:
        if now is None:
            self._lines["broker-unregistered"].write("broker=%d%s", broker_id, cause.by)
            return
        is_served = was is not None and not was.fenced
        is_going = now.in_controlled_shutdown and was is not None and not was.in_controlled_shutdown
        if is_served == (not now.fenced) and not is_going:
            return
        partitions = moved = offline = led = 0
        for change, before in changed:
            partitions += broker_id in before.replicas
            led += change.state.leader == broker_id != before.leader
            if before.leader == broker_id != change.state.leader:
                moved += change.state.leader >= 0
                offline += change.state.leader < 0
        if is_served and was is not None and (now.fenced or is_going):
            event = "broker-fenced" if now.fenced else "broker-shutting-down"
            reason = f" reason='{_reason(was, now, cause)}'" if now.fenced else ""
            text = "broker=%d%s partitions=%d leaders-moved=%d offline=%d"
            self._lines[event].write(text, broker_id, reason, partitions, moved, offline)
        elif not is_served and not now.fenced:
            self._lines["broker-unfenced"].write("broker=%d partitions=%d leads=%d", broker_id, partitions, led)

    def _topics(self, before: ClusterImage, delta: ImageDelta, cause: "Cause", added: Mapping[str, int]) -> None:
        for topic in delta.deleted_topics:
            self._lines["topic-deleted"].write("topic=%s partitions=%d%s", topic.name, len(topic.partitions), cause.by)
        for topic in delta.created_topics:
            factor = max((len(state.replicas) for state in topic.partitions.values()), default=0)
            text = "topic=%s partitions=%d replication-factor=%d%s"
            self._lines["topic-created"].write(text, topic.name, len(topic.partitions), factor, cause.by)
        for name, count in added.items():
            had = len(before.topics[name].partitions)
            self._lines["topic-altered"].write("topic=%s partitions=%d was=%d%s", name, had + count, had, cause.by)

    def _configs(
        self, before: ClusterImage, image: ClusterImage, changed: Iterable[ConfigResource], cause: "Cause"
    ) -> None:
        for resource in changed:
            was, now = before.overrides(resource), image.overrides(resource)
            names = sorted(name for name in {*was, *now} if was.get(name) != now.get(name))
            if not names:
                continue
            if resource.type != ResourceType.TOPIC:  # a value may be a secret
                text = "type=%s name=%r settings=%s%s"
                kind = _kind(resource.type)
                self._lines["config-altered"].write(text, kind, resource.name, _cut(",".join(names)), cause.by)
            elif resource.name in before.topics and resource.name in image.topics:
                values = "; ".join(
                    f"{name}={now.get(name, 'default')} (was {was.get(name, 'default')})" for name in names
                )
                self._lines["topic-altered"].write("topic=%s settings=%r%s", resource.name, _cut(values), cause.by)

    def _partition(self, change: ChangedPartition, was: PartitionState) -> None:
        partition, now = change.topic_partition, change.state
        if now.leader != was.leader:
            text = "partition=%s leader=%s was=%s leader-epoch=%d"
            self._lines["leader-changed"].write(
                text, partition, _leader(now.leader), _leader(was.leader), now.leader_epoch
            )
        if set(now.in_sync_replicas) != set(was.in_sync_replicas):
            text = "partition=%s isr=%s was=%s leader=%s"
            isr, old = _ids(now.in_sync_replicas), _ids(was.in_sync_replicas)
            self._lines["isr-changed"].write(text, partition, isr, old, _leader(now.leader))
        if now.replicas != was.replicas:
            replicas, old = _ids(now.replicas), _ids(was.replicas)
            self._lines["replicas-changed"].write("partition=%s replicas=%s was=%s", partition, replicas, old)


class Cause:
    """The cause of a change, as far as it is known: a broker's silence, or a client."""

    def __init__(self, command: ControllerCommand | None, *, silent_ms: int = 0) -> None:
        """`silent_ms`: the time since the last heartbeat of a broker that is fenced for its silence."""
        self.silent_ms = silent_ms if isinstance(command, FenceSilentBroker) else None
        requested_by = getattr(command, "requested_by", "")
        self.by = f" by={requested_by!r}" if requested_by else ""
        """The client, if known, for the end of a line."""


def _reason(was: BrokerImage, now: BrokerImage, cause: Cause) -> str:
    if cause.silent_ms is not None:
        return f"no heartbeat for {cause.silent_ms} ms"
    if was.broker_epoch != now.broker_epoch:
        return "registered anew"
    return "controlled shutdown" if was.in_controlled_shutdown else "asked for by itself"


def _kind(resource_type: int) -> str:
    try:
        return ResourceType(resource_type).name.lower()
    except ValueError:
        return str(resource_type)


def _leader(broker_id: BrokerId) -> str:
    return "none" if broker_id < 0 else str(broker_id)


def _ids(brokers: Iterable[BrokerId]) -> str:
    return ",".join(map(str, brokers)) or "none"


def _cut(text: str) -> str:
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}..."
