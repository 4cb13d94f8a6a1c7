"""The partitions and offsets of a read, from the cluster's metadata, on Spark's driver."""

import logging
import re
import time
from collections.abc import Iterable, Mapping

from tailrace.client.blocking.admin import Admin
from tailrace.client.cluster_view import TopicInfo
from tailrace.client.reader_settings import parse_isolation
from tailrace.model.errors import ErrorCode, KafkaError
from tailrace.model.ids import ZERO_TOPIC_ID, TopicId
from tailrace.model.partitions import INTERNAL_TOPICS, TopicPartition
from tailrace.model.views import parse_view
from tailrace.spark.given_options import fault
from tailrace.spark.offsets import EARLIEST, LATEST, Offsets, Positions
from tailrace.spark.reading.source_options import OffsetRangeLimit, SourceOptions, Subscription

_log = logging.getLogger(__name__)

_LOOKS = 3
_PAUSE_S = 0.2
"""The pause between two requests for a topic's id."""


def _stored_as(partition: TopicPartition) -> TopicPartition:
    """The partition that holds a view partition; any other partition itself."""
    view = parse_view(partition.topic)
    return partition if view is None else TopicPartition(view.topic, partition.partition // view.fan_out)


PROGRESS_TIMEOUT_MS = 2_000
"""The time limit of a commit of progress. It is short: progress is for display only, and the next batch waits for the
commit."""


class Planner:
    """The offsets of one query. Holds a connection until `close`."""

    def __init__(self, options: SourceOptions) -> None:
        self._options = options
        self._admin = Admin.of(options.cluster.settings())
        self._isolation_level = parse_isolation(options.isolation)
        self._reported: set[str] = set()
        self.topic_ids: dict[str, TopicId] = {}
        """The ids of the topics that `partitions` has found; empty on a cluster before KIP-516."""

    def close(self) -> None:
        self._admin.close()

    def partitions(self) -> list[TopicPartition]:
        """Every partition of the subscription that exists now, sorted. Raises KafkaError(3) for an unknown topic."""
        subscription = self._options.subscription
        if subscription.assigned is not None:
            return self._assigned(subscription.assigned)
        topics = self._topics(subscription)
        described = self._describe(topics)
        return sorted(
            TopicPartition(topic.name, partition.partition) for topic in described for partition in topic.partitions
        )

    def _assigned(self, assigned: frozenset[TopicPartition]) -> list[TopicPartition]:
        described = self._describe(sorted({tp.topic for tp in assigned}))
        existing = {TopicPartition(t.name, p.partition) for t in described for p in t.partitions}
        if missing := sorted(assigned - existing):
            named = ", ".join(map(str, missing))
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"option assign: there is no partition {named}")
        return sorted(assigned)

    def _describe(self, topics: list[str]) -> list[TopicInfo]:
        described = self._admin.describe_topics(topics) if topics else []
        self.topic_ids = {topic.name: topic.topic_id for topic in described if topic.topic_id != ZERO_TOPIC_ID}
        return described

    def _topics(self, subscription: Subscription) -> list[str]:
        if subscription.topics is not None:
            return sorted(set(subscription.topics))
        pattern = re.compile(subscription.pattern or "")
        names = (topic.name for topic in self._admin.list_topics())
        return sorted(name for name in names if name not in INTERNAL_TOPICS and pattern.search(name))

    def ends(self) -> Positions:
        """The end offset of every partition of the subscription."""
        for _ in range(_LOOKS - 1):
            try:
                return self._ends()
            except KafkaError as fault:
                # A topic may be deleted between two requests. A read by pattern goes on without the topic.
                if self._options.subscription.pattern is None or fault.code != ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                    raise
        return self._ends()

    def _ends(self) -> Positions:
        offsets = self.latest(self.partitions())
        return Positions(offsets, self.topic_ids)

    def earliest(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """The first offset that can still be read, per partition."""
        return self._offsets(dict.fromkeys(partitions, EARLIEST))

    def first_of_new(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """The first offset of each partition that the query has not seen before.

        A new partition begins at offset 0: if the log starts later, the records before are lost for the query. Raises
        KafkaError(OFFSET_OUT_OF_RANGE) instead with failOnDataLoss.
        """
        starts = self.earliest(partitions)
        for tp, offset in starts.items():
            if offset > 0:
                self.report_loss(f"{tp} is new to this query, and its records from offset 0 to {offset - 1} are gone")
        return starts

    def latest(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """The offset after the last record that may be read, per partition."""
        return self._offsets(dict.fromkeys(partitions, LATEST))

    def span(self, partition: TopicPartition) -> tuple[int, int] | None:
        """`earliest` and `latest` of one partition, None if there is no such partition."""
        try:
            return self.earliest([partition])[partition], self.latest([partition])[partition]
        except KafkaError as fault:
            if fault.code != ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                raise
            return None

    def _offsets(self, specs: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        if not specs:
            return {}
        listed = self._admin.list_offsets(specs, isolation_level=self._isolation_level)
        return {tp: offset_at.offset for tp, offset_at in listed.items()}

    def resolve(
        self, position: OffsetRangeLimit, partitions: Iterable[TopicPartition], *, is_start: bool
    ) -> dict[TopicPartition, int]:
        """The offset of this position in every given partition."""
        name = "startingOffsets" if is_start else "endingOffsets"
        wanted = list(partitions)
        if position.timestamp is not None:
            return self._by_timestamp(dict.fromkeys(wanted, position.timestamp), is_start=is_start)
        if position.timestamps is not None:
            self._must_name_all(f"{name}ByTimestamp", position.timestamps, wanted)
            return self._by_timestamp(position.timestamps, is_start=is_start)
        if position.offsets is None:
            return self._offsets(dict.fromkeys(wanted, position.everywhere))
        self._must_name_all(name, position.offsets, wanted)
        symbolic = {tp: offset for tp, offset in position.offsets.items() if offset < 0}
        return {**position.offsets, **self._offsets(symbolic)}

    @staticmethod
    def _must_name_all(option: str, given: Offsets, partitions: list[TopicPartition]) -> None:
        odd = sorted(str(tp) for tp in given.keys() ^ set(partitions))
        if odd:
            raise fault(option, f"must name exactly the partitions that are read; it differs in {', '.join(odd)}")

    def _by_timestamp(self, timestamps: Mapping[TopicPartition, int], *, is_start: bool) -> dict[TopicPartition, int]:
        """The first offset at or after each time. Without such a record: the end, or KafkaError for a start.

        A view partition (`orders.shared-16`) without such a record is read from its end if another partition of the
        view has such a record of the same stored partition: few keys of a partition have a record after each time.
        """
        found = self._offsets(timestamps)
        missing = sorted(tp for tp, offset in found.items() if offset < 0)
        if not missing:
            return found
        if is_start and self._options.by_timestamp_strategy == "error":
            stored = {(_stored_as(tp), timestamps[tp]) for tp, offset in found.items() if offset >= 0}
            for tp in missing:
                if (_stored_as(tp), timestamps[tp]) not in stored:
                    raise KafkaError(
                        ErrorCode.OFFSET_OUT_OF_RANGE,
                        f"{tp} has no record at or after timestamp {timestamps[tp]};"
                        " to start at its end instead say startingOffsetsByTimestampStrategy=latest",
                    )
        ends = self.latest(missing)
        # A record that came between the two answers is below this end, and may be of the time or later.
        again = self._offsets({tp: timestamps[tp] for tp in missing})
        return {**found, **{tp: again[tp] if again[tp] >= 0 else ends[tp] for tp in missing}}

    def check_batch(self, start: Offsets, end: Offsets) -> dict[TopicPartition, int]:
        """`end`; with failOnDataLoss=false lowered to the ends of the logs, since only these records can be read.

        With failOnDataLoss a task waits for missing records, for kafkaConsumer.pollTimeoutMs. Raises
        KafkaError(INVALID_REQUEST) for a start behind its end or behind the end of the log: such a partition has no
        range, and would be left out in silence.
        """
        latest = self.latest(end)
        starting, ending = self._options.starting.name, self._options.ending.name
        for tp in sorted(end):
            if start[tp] > latest[tp]:
                raise fault(starting, f"{tp} ends at offset {latest[tp]}, before its start {start[tp]}")
            if start[tp] > end[tp]:
                raise fault(ending, f"{tp} is to be read from offset {start[tp]} to {end[tp]}, which lies before it")
        if self._options.fail_on_data_loss:
            return dict(end)
        for tp in sorted(end):
            if end[tp] > latest[tp]:
                _log.warning("option %s: %s ends at offset %d and is read to there", ending, tp, latest[tp])
        return {tp: min(end[tp], latest[tp]) for tp in end}

    def check_loss(self, start: Offsets, end: Offsets) -> dict[TopicPartition, int]:
        """`start`, raised to the log start where records below the log start are lost.

        Gaps above the log start are no loss: compaction and transaction markers leave gaps. Raises
        KafkaError(OFFSET_OUT_OF_RANGE) instead with failOnDataLoss.
        """
        behind = [tp for tp in end if tp in start and start[tp] < end[tp]]
        log_starts = self.earliest(behind)
        checked = dict(start)
        for tp in behind:
            if start[tp] < log_starts[tp]:
                self.report_loss(f"{tp}: the records from offset {start[tp]} to {log_starts[tp] - 1} are gone")
                checked[tp] = min(log_starts[tp], end[tp])
        return checked

    def check_topics(self, start: Positions, now: Positions) -> Positions | None:
        """`start`, at the first record of the topics that were deleted and created again; None if answers disagree.

        Raises KafkaError(OFFSET_OUT_OF_RANGE) instead with failOnDataLoss.
        """
        for name in start.made_anew(now.topic_ids):
            if not self._is_made_anew(name, start.topic_ids[name]):
                return None
            lost = ", ".join(
                f"{tp} from offset {start.offsets[tp]} on" for tp in sorted(start.offsets) if tp.topic == name
            )
            self.report_loss(f"topic {name} was deleted and created again: the records of the old one are gone, {lost}")
        return start.moved_to(now)

    def _is_made_anew(self, name: str, known: TopicId) -> bool:
        """Whether further answers have another id too: a single answer is no proof, a broker may know an old state."""
        for _ in range(_LOOKS):
            time.sleep(_PAUSE_S)
            self.partitions()
            if self.topic_ids.get(name, known) == known:
                return False
        return True

    def check_end(self, start: Offsets, latest: Offsets) -> Offsets:
        """The offsets of `start`; an offset beyond the end of its log, which was cut or made anew, is lowered to that
        end, from which the query reads on.

        With failOnDataLoss, raises KafkaError(OFFSET_OUT_OF_RANGE) for such a log and for a missing log.
        """
        if any(latest.get(tp, -1) < offset for tp, offset in start.items()):
            # These ends may be older than `start`: request them again before a loss is reported.
            latest = self.ends().offsets
        for tp, offset in start.items():
            if tp not in latest and not self._options.subscription.has(tp):
                self.report_loss(
                    f"{tp} is not read by option {self._options.subscription.option}, and this query stands at its "
                    f"offset {offset}: a checkpoint belongs to the topics of its query",
                    why="for another topic say another checkpointLocation; `tailrace spark checkpoint move --rename` "
                    "moves the checkpoint to a topic's new name",
                )
            elif tp not in latest:
                self.report_loss(f"{tp} is gone, with its records from offset {offset} on, where this query stands")
            elif latest[tp] < offset:
                self.report_loss(f"{tp} ends at offset {latest[tp]}, before {offset} where this query stands")
        return {tp: min(offset, latest.get(tp, offset)) for tp, offset in start.items()}

    def check_plan(self, start: Offsets, end: Positions) -> dict[TopicPartition, int]:
        """The offsets of `end`, lowered where the log ends earlier or is missing: its topic was created again, or
        deleted, since.

        Raises KafkaError(OFFSET_OUT_OF_RANGE) instead with failOnDataLoss.
        """
        latest = self._agreed_ends(end)
        anew = end.made_anew(latest.topic_ids)
        checked = dict(end.offsets)
        for tp, until in end.offsets.items():
            since, last = start.get(tp, until), latest.offsets.get(tp, 0)
            if tp.topic in anew:
                if since < until:
                    lost = f"the records of the old one are gone, {tp} from offset {since} to {until - 1}"
                    self.report_loss(f"topic {tp.topic} was deleted and created again: {lost}")
                checked[tp] = since
                continue
            if max(since, last) < until:
                self.report_loss(f"{tp} ends at offset {last}, before {until} up to where it was to be read")
                checked[tp] = max(since, last)
        return checked

    def _agreed_ends(self, planned: Positions) -> Positions:
        """The ends, with ids of topics that further answers confirm if the ids differ from the planned ids."""
        for _ in range(_LOOKS):
            latest = self.ends()
            anew = planned.made_anew(latest.topic_ids)
            if all(self._is_made_anew(name, planned.topic_ids[name]) for name in anew):
                return latest
        raise KafkaError(
            ErrorCode.INCONSISTENT_TOPIC_ID,
            f"brokers disagree on whether topic {anew[0]} was deleted and created again: start the query again when "
            "all of them have caught up",
        )

    def report_loss(self, what: str, *, why: str = "removed by retention or with their topic") -> None:
        """Raise KafkaError(OFFSET_OUT_OF_RANGE) with failOnDataLoss; log a warning otherwise."""
        if self._options.fail_on_data_loss:
            raise KafkaError(
                ErrorCode.OFFSET_OUT_OF_RANGE,
                f"{what} ({why}); to go on without them say failOnDataLoss=false",
            )
        if what not in self._reported:  # a stream meets the same loss at every trigger
            self._reported.add(what)
            _log.warning("data loss: %s (%s)", what, why)

    def show_progress(self, group: str, offsets: Offsets) -> None:
        """Commit the offsets for the group. Raises KafkaError, also for a group with members."""
        show_progress(self._admin, group, offsets, timeout_ms=PROGRESS_TIMEOUT_MS)


def show_progress(admin: Admin, group: str, offsets: Offsets, *, timeout_ms: int) -> None:
    """Commit the offsets of partitions that still exist: a stream's offsets keep deleted partitions."""
    try:
        admin.commit_offsets(group, offsets, timeout_ms=timeout_ms)
    except KafkaError as fault:
        if fault.code != ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
            raise
