"""Notices of a consumer in the log `tailrace.client`, about records that its user does not get.

1. A fault that keeps the consumer from reading, every 30 s, and its end. The first warning comes at once where waiting
   is not likely to help: no broker has ever answered, or a broker has answered that a topic does not exist. Otherwise
   it comes after two seconds, the time of an election or a restart.
2. The records that a new group skips.
3. The records that are not read because the log does not have the position any more.
"""

import logging
from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

from tailrace.client.cluster_view import AbsentTopic
from tailrace.client.reading.position import Truncation
from tailrace.model.errors import ErrorCode, KafkaError
from tailrace.model.partitions import TopicPartition
from tailrace.model.throttle import Throttle

_WARNING_PERIOD_MS: Final = 30_000
_GRACE_MS: Final = 2_000
_PAUSE_MS: Final = 1_000
"""Polls with a shorter pause in between count as a single poll: an attempt to connect may outlast polls."""

_logger = logging.getLogger("tailrace.client")


class Jump(NamedTuple):
    """The move from an offset that is out of range to the offset at which reading goes on."""

    offset: int
    start: int
    log_start: int | None = None
    """None: not known, as with `log_end`."""
    log_end: int | None = None

    def __str__(self) -> str:
        goes_on = f"goes on at {self.start}"
        if self.log_start is None or self.log_end is None:
            return f"is out of range; {goes_on}"
        log = f"(log {self.log_start} to {self.log_end})"
        if self.offset > self.log_end:
            # Either the log was truncated after the records were read, or the topic was created again.
            return f"is past the end {log}; {goes_on}"
        removed = max(0, self.log_start - self.offset)
        skipped = self.start - max(self.offset, self.log_start)
        fate = ""
        if skipped > 0:
            fate = f" and skips {_records(skipped)}"
        elif removed:
            fate = f": {_records(removed)} {'is' if removed == 1 else 'are'} removed unread"
        return f"is {'gone' if removed else 'out of range'} {log}; {goes_on}{fate}"


class ReadNotices:
    """The notices of one consumer."""

    def __init__(self, group: str | None, client_id: str, *, bootstrap_timeout_ms: int) -> None:
        self._group = group
        self._name = f"consumer {client_id}" if group is None else f"group {group}"
        self._bootstrap_timeout_ms = bootstrap_timeout_ms
        self._last_ms: int | None = None
        """The time of the last `begin_poll` or `check`."""
        self._unreached_ms = 0
        """The time of polling without an answer of any broker."""
        self._stretch_began_ms = 0
        """The begin of the polls since the last pause between polls."""
        self._stretch_ms = 0
        """The time of polling in this stretch."""
        self._warnings = Throttle(_WARNING_PERIOD_MS)
        self._has_warned = False
        self._trouble_since_ms: int | None = None
        self._reported: set[TopicPartition] = set()
        self._jump_warnings = Throttle(_WARNING_PERIOD_MS)
        self._pending_jumps: dict[TopicPartition, tuple[Jump | Truncation, int]] = {}
        """The last jump of a partition since the last log line, and the number of jumps."""

    def begin_poll(self, now_ms: int) -> None:
        """Begin to count time of polling. After a pause between polls, an older failed attempt does not count."""
        if self._last_ms is None or now_ms - self._last_ms > _PAUSE_MS:
            self._begin_stretch(now_ms)
        self._last_ms = now_ms

    def _begin_stretch(self, now_ms: int) -> None:
        self._stretch_began_ms = now_ms
        self._stretch_ms = 0

    def check(
        self,
        trouble: KafkaError | None,
        now_ms: int,
        *,
        has_answered: bool,
        failed_attempt_ms: int | None = None,
    ) -> None:
        """Warn of the fault that keeps the consumer from reading. Call it about once a second during a poll.

        Raises KafkaError when no broker has answered for bootstrap.timeout.ms of polling: the address is
        probably wrong. The next poll has that time again. `failed_attempt_ms`: the begin of the last attempt that
        reached no broker; that begin must be later than the last pause between polls.
        """
        if trouble is None:
            self._trouble_since_ms = None
            if self._has_warned and has_answered:
                self._has_warned = False
                _logger.info("%s reads again", self._name)
        else:
            self._warn(trouble, now_ms, has_answered=has_answered)
        self._log_jumps(now_ms)
        elapsed_ms = 0 if self._last_ms is None else now_ms - self._last_ms
        self._last_ms = now_ms
        self._stretch_ms += elapsed_ms
        self._unreached_ms = 0 if has_answered else self._unreached_ms + elapsed_ms
        limit_ms = self._bootstrap_timeout_ms
        has_failed = failed_attempt_ms is not None and failed_attempt_ms >= self._stretch_began_ms
        if self._unreached_ms >= limit_ms and (has_failed or self._stretch_ms >= limit_ms):
            self._unreached_ms = 0
            self._begin_stretch(now_ms)
            detail = f"no broker has answered within bootstrap.timeout.ms {limit_ms}"
            if trouble is not None:
                raise KafkaError(trouble.code, f"{detail}: {trouble.detail}")
            raise KafkaError(ErrorCode.NETWORK_EXCEPTION, detail)

    def _warn(self, trouble: KafkaError, now_ms: int, *, has_answered: bool) -> None:
        if self._trouble_since_ms is None:
            self._trouble_since_ms = now_ms
        may_pass = has_answered and not isinstance(trouble, AbsentTopic)
        if may_pass and now_ms - self._trouble_since_ms < _GRACE_MS:
            return
        if self._warnings.admits(trouble.code, now_ms):
            self._has_warned = True
            _logger.warning("%s cannot read: %s", self._name, trouble.detail or trouble.code.name)

    def unreported(self, partitions: Iterable[TopicPartition]) -> list[TopicPartition]:
        """The partitions that `report_skipped` has not reported: a rebalance may assign a partition again."""
        return [partition for partition in partitions if partition not in self._reported]

    def report_skipped(self, counts: Mapping[TopicPartition, int], *, has_offsets: bool) -> None:
        """Report the numbers of older records that the consumer skips: it begins at the end of these partitions.

        `has_offsets`: the group has committed offsets in other partitions.
        """
        self._reported.update(counts)
        by_topic: dict[str, list[int]] = {}
        for partition, count in counts.items():
            by_topic.setdefault(partition.topic, []).append(count)
        for topic, each in sorted(by_topic.items()):
            skipped = sum(each)
            if not skipped:
                continue
            where = f" in {len(each)} of its partitions" if has_offsets else ""
            why = self._name if self._group is None else f"group {self._group!r} has no offsets{where}"
            _logger.warning(
                '%s: it starts at the end of %s and skips %d older record%s; auto_offset_reset="earliest" reads them',
                why,
                topic,
                skipped,
                "" if skipped == 1 else "s",
            )

    def report_jumps(self, jumps: Mapping[TopicPartition, Jump | Truncation], now_ms: int) -> None:
        """Report positions that the log does not have, and the fate of their records.

        The log line comes at once, then at most every 30 s per partition: `check` writes the later lines.
        """
        for partition, jump in jumps.items():
            _, times = self._pending_jumps.get(partition, (jump, 0))
            self._pending_jumps[partition] = jump, times + 1
        self._log_jumps(now_ms)

    def _log_jumps(self, now_ms: int) -> None:
        for partition, (jump, times) in list(self._pending_jumps.items()):
            if self._jump_warnings.admits(partition, now_ms):
                del self._pending_jumps[partition]
                name = self._name if self._group is None else f"group {self._group!r}"
                often = "" if times == 1 else f"; the last of {times} times"
                _logger.warning("%s: offset %d of %s %s%s", name, jump.offset, partition, jump, often)


def _records(count: int) -> str:
    return "1 record" if count == 1 else f"{count} records"
