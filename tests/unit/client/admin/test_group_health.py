"""Lag, loss and verdicts."""

from typing import Any

import pytest

from tailrace.client.admin.group_health import STUCK_AFTER_MS, MemberHealth, PartitionHealth, verdict
from tailrace.protocol.messages.groups import MemberDetails, PartitionProgress

NOW = 1_700_000_000_000
SESSION_MS = 10_000


def _health(
    committed: int | None = 100,
    *,
    end: int = 100,
    start: int = 0,
    waits_ms: int = 1_000,
    moved_ms_ago: int = 1_000,
    pace: tuple[int, int] = (50, 50),
) -> PartitionHealth:
    """`pace`: records read and records arrived in the 30 s before the last move."""
    read, arrived = pace
    progress = None
    if committed is not None:
        moved_at_ms = NOW - moved_ms_ago
        progress = PartitionProgress(
            partition_index=0,
            offset=committed,
            moved_at_ms=moved_at_ms,
            earlier_offset=committed - read,
            earlier_at_ms=moved_at_ms - 30_000,
        )
    return PartitionHealth(
        committed=committed,
        log_start_offset=start,
        end_offset=end,
        unread_since_ms=NOW - waits_ms,
        progress=progress,
        arrived=arrived,
    )


def _verdict(*partitions: PartitionHealth, silent_ms: int = 0) -> MemberHealth | None:
    member = MemberDetails(member_id="m", silent_ms=silent_ms, session_timeout_ms=SESSION_MS)
    return verdict(member, partitions, NOW)


BEHIND: dict[str, Any] = {"end": 200}
LONG_MS = STUCK_AFTER_MS


@pytest.mark.parametrize(
    ("partitions", "silent_ms", "wanted"),
    [
        ([_health()], 0, MemberHealth.IDLE),
        ([], 0, MemberHealth.IDLE),
        ([_health(**BEHIND)], 0, MemberHealth.WORKING),
        ([_health(**BEHIND), _health()], 0, MemberHealth.WORKING),
        ([_health(**BEHIND, pace=(90, 100))], 0, MemberHealth.SLOW),
        ([_health(**BEHIND, pace=(96, 100))], 0, MemberHealth.WORKING),
        ([_health(**BEHIND, pace=(0, 0))], 0, MemberHealth.WORKING),
        ([_health(**BEHIND, waits_ms=LONG_MS, moved_ms_ago=LONG_MS)], 0, MemberHealth.STUCK),
        ([_health(**BEHIND, waits_ms=LONG_MS, moved_ms_ago=LONG_MS), _health()], 0, MemberHealth.STUCK),
        ([_health(**BEHIND, waits_ms=LONG_MS - 1, moved_ms_ago=LONG_MS)], 0, MemberHealth.WORKING),
        ([_health(**BEHIND, waits_ms=LONG_MS, moved_ms_ago=LONG_MS - 1)], 0, MemberHealth.WORKING),
        ([_health(moved_ms_ago=10 * LONG_MS, waits_ms=10 * LONG_MS)], 0, MemberHealth.IDLE),
        ([_health()], SESSION_MS // 2, MemberHealth.IDLE),
        ([_health()], SESSION_MS // 2 + 1, MemberHealth.GONE),
        ([_health(None)], 0, None),
        ([_health(None), _health(**BEHIND)], 0, MemberHealth.WORKING),
    ],
)
def test_verdicts(partitions: list[PartitionHealth], silent_ms: int, wanted: MemberHealth | None) -> None:
    assert _verdict(*partitions, silent_ms=silent_ms) is wanted


def test_there_is_no_verdict_without_details_of_the_coordinator() -> None:
    assert verdict(None, [_health()], NOW) is None


@pytest.mark.parametrize(
    ("committed", "start", "end", "lag", "lost"),
    [
        (5, 0, 9, 4, 0),
        (9, 0, 9, 0, 0),
        (5, 7, 9, 2, 2),
        (5, 9, 9, 0, 4),
        (12, 0, 9, 0, 0),
        (None, 3, 9, None, None),
    ],
)
def test_lag_begins_at_the_log_start_and_older_records_are_lost(
    committed: int | None, start: int, end: int, lag: int | None, lost: int | None
) -> None:
    health = _health(committed, start=start, end=end)
    assert (health.lag, health.lost) == (lag, lost)


def test_lag_is_unknown_without_the_log_end() -> None:
    health = PartitionHealth(committed=5)
    assert (health.lag, health.lost, health.lag_ms(NOW)) == (None, None, None)


def test_lag_in_time_is_the_age_of_the_first_unread_record() -> None:
    assert _health(**BEHIND, waits_ms=2_500).lag_ms(NOW) == 2_500
    assert _health().lag_ms(NOW) == 0
