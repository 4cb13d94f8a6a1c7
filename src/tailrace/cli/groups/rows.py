"""The tables of `tailrace groups describe`: rows and columns."""

import base64
from collections.abc import Iterable, Mapping
from typing import Final

from tailrace.cli.groups.states import KnownGroup
from tailrace.cli.output import Cell, Row
from tailrace.client.admin.group_health import PartitionHealth, progress_of, verdict
from tailrace.client.group.described_groups import DescribedMember, GroupDescription
from tailrace.model.partitions import TopicPartition
from tailrace.model.views import parse_view

_LAG_COLUMNS = (
    "GROUP",
    "TOPIC",
    "PARTITION",
    "CURRENT-OFFSET",
    "LOG-END-OFFSET",
    "LAG",
    "CONSUMER-ID",
    "HOST",
    "CLIENT-ID",
    "LAG-MS",
    "LOST",
    "VERDICT",
)
"""The columns of Kafka's tool, then the columns of Tailrace."""
_RANGE_COLUMNS = ("AHEAD", "RANGES", "OLDEST-GAP", "GAP-MS")
"""Columns of groups that split partitions by key; shown if there is such a group."""
_VIEW_COLUMNS = ("SLOWEST-OF",)
"""Columns of groups that read views; shown if a partition of theirs is behind."""
_KEY_COLUMNS = ("EPOCH", "FIRST-KEY")
"""Columns of groups that read views, or split partitions by key."""
_RUNNING_COLUMNS = ("RUNNING-MS", "RUNNING-KEY")
"""Columns of groups whose handlers run for long."""
_OWN_COLUMNS = (*_RANGE_COLUMNS, *_VIEW_COLUMNS, *_KEY_COLUMNS, *_RUNNING_COLUMNS)
MEMBER_COLUMNS: Final = ("GROUP", "CONSUMER-ID", "HOST", "CLIENT-ID", "#PARTITIONS", "ASSIGNMENT", "VERDICT")
STATE_COLUMNS: Final = ("GROUP", "COORDINATOR (ID)", "ASSIGNMENT-STRATEGY", "STATE", "#MEMBERS")
_MOST_KEY_BYTES = 48
"""The bytes of a key that are shown; a longer key ends with dots."""


def lag_columns(states: Iterable[KnownGroup], rows: Iterable[Row]) -> list[str]:
    """The columns of the lag of these groups, whose rows these are."""
    columns = [*_LAG_COLUMNS]
    has_ranges = any(state.ranged for state in states)
    if has_ranges:
        columns += _RANGE_COLUMNS
    if any(row["SLOWEST-OF"] for row in rows):
        columns += _VIEW_COLUMNS
    if has_ranges or any(parse_view(partition.topic) for state in states for partition in state.committed):
        columns += _KEY_COLUMNS
    if any(state.running for state in states):
        columns += _RUNNING_COLUMNS
    return columns


def lag_rows(state: KnownGroup) -> list[Row]:
    """The row of each partition, and of each member without partitions."""
    owners = state.owners
    slowest = {partition: stored for stored, partition in _slowest(state.health).items()}
    rows: list[Row] = [
        {
            **_lag_row(state, partition, owners.get(partition)),
            **_range_cells(state, partition),
            "SLOWEST-OF": str(slowest[partition]) if partition in slowest else None,
            **_key_cells(state, partition, owners.get(partition)),
        }
        for partition in sorted(state.health)
    ]
    idle = (member for member in state.group.members if not member.assignment)
    return [
        *rows,
        *(
            {
                "GROUP": state.group.group,
                **dict.fromkeys(_LAG_COLUMNS[1:6]),
                **_member_cells(member),
                "LAG-MS": None,
                "LOST": None,
                "VERDICT": _verdict(state, member),
                **dict.fromkeys(_OWN_COLUMNS),
                "EPOCH": member.epoch,
            }
            for member in idle
        ),
    ]


def _slowest(health: Mapping[TopicPartition, PartitionHealth]) -> dict[TopicPartition, TopicPartition]:
    """By partition of a topic, the view partition with the largest lag, if any is behind."""
    found: dict[TopicPartition, tuple[int, TopicPartition]] = {}
    for partition, known in sorted(health.items()):
        view = parse_view(partition.topic)
        if view is None or not known.lag:
            continue
        stored = TopicPartition(view.topic, partition.partition // view.fan_out)
        if stored not in found or found[stored][0] < known.lag:
            found[stored] = (known.lag, partition)
    return {stored: partition for stored, (_, partition) in found.items()}


def _lag_row(state: KnownGroup, partition: TopicPartition, owner: DescribedMember | None) -> Row:
    found = state.health[partition]
    return {
        "GROUP": state.group.group,
        "TOPIC": partition.topic,
        "PARTITION": partition.partition,
        "CURRENT-OFFSET": found.committed,
        "LOG-END-OFFSET": found.end_offset,
        "LAG": found.lag,
        **_member_cells(owner),
        "LAG-MS": found.lag_ms(state.now_ms),
        "LOST": found.lost,
        "VERDICT": None if owner is None else _verdict(state, owner),
    }


def _range_cells(state: KnownGroup, partition: TopicPartition) -> dict[str, Cell]:
    found, details = state.ranged.get(partition), state.group.details
    if found is None or details is None:
        return dict.fromkeys(_RANGE_COLUMNS)
    stands = progress_of(details).get(partition)
    return {
        "AHEAD": found.ahead,
        "RANGES": f"{len(found.ranges)}/{details.max_ranges}",
        "OLDEST-GAP": str(found.oldest_gap),
        "GAP-MS": None if stands is None else max(details.now_ms - stands.moved_at_ms, 0),
    }


def _key_cells(state: KnownGroup, partition: TopicPartition, owner: DescribedMember | None) -> dict[str, Cell]:
    first, running = state.health[partition].first, state.running.get(partition)
    return {
        "EPOCH": None if owner is None else owner.epoch,
        "FIRST-KEY": None if first is None else key_cell(first.key),
        "RUNNING-MS": None if running is None else max(state.now_ms - state.notes[partition].since_ms, 0),
        "RUNNING-KEY": None if running is None else key_cell(running.key),
    }


def key_cell(key: bytes | None) -> Cell:
    """A key as text, or in base64 if it is no text; None for a record without a key."""
    if key is None:
        return None
    shown, dots = key[:_MOST_KEY_BYTES], "..." if len(key) > _MOST_KEY_BYTES else ""
    try:
        key.decode()
    except UnicodeDecodeError:
        return base64.b64encode(shown).decode("ascii") + dots
    return shown.decode(errors="ignore") + dots  # the last character may be cut


def _verdict(state: KnownGroup, member: DescribedMember) -> str | None:
    details = state.group.details
    known = {} if details is None else {found.member_id: found for found in details.members}
    return verdict(known.get(member.member_id), [state.health[p] for p in member.assignment], state.now_ms)


def _member_cells(member: DescribedMember | None) -> dict[str, Cell]:
    return {
        "CONSUMER-ID": member.member_id if member else None,
        "HOST": member.host if member else None,
        "CLIENT-ID": member.client_id if member else None,
    }


def member_row(state: KnownGroup, member: DescribedMember) -> Row:
    """The row of a member and its partitions."""
    return {
        "GROUP": state.group.group,
        **_member_cells(member),
        "#PARTITIONS": len(member.assignment),
        "ASSIGNMENT": [str(partition) for partition in sorted(member.assignment)],
        "VERDICT": _verdict(state, member),
    }


def state_row(group: GroupDescription) -> Row:
    """The row of a group and its coordinator."""
    return {
        "GROUP": group.group,
        "COORDINATOR (ID)": f"{group.coordinator} ({group.coordinator_id})",
        "ASSIGNMENT-STRATEGY": group.assignor,
        "STATE": group.state,
        "#MEMBERS": len(group.members),
    }
