"""Answers as trees that can be compared: what two nodes choose for themselves is given names.

Trees are dicts. A struct's keys are its fields; an array of structs has a key per element, made of what identifies it
(`[orders]`, `[0]`), because Kafka's order comes out of hash maps. Leaves are plain values.
"""

import re
import time
from collections.abc import Callable, Sequence
from typing import Any

from tailrace.model.errors import CorruptRecords, ErrorCode
from tailrace.protocol.records.batch import iter_batches
from tailrace.protocol.records.record import read_records
from tailrace.protocol.schema import ZERO_UUID, schema_of, unknown_tags

Tree = dict[str, Any]

_NOT_COMPARED = frozenset({"throttle_time_ms", "error_message", "batch_index_error_message", "documentation"})
_IDENTITY = (
    *("name", "topic", "topic_name", "topic_id", "group_id", "api_key", "resource_type", "resource_name"),
    *("partition_index", "partition", "index", "node_id", "broker_id", "replica_id", "group_instance_id"),
    *("instance_id", "member_id", "producer_id", "source", "batch_index", "user", "mechanism", "entity_type"),
)
_RULE = ("principal", "host", "operation", "permission_type")
"""The identity of an ACL, beside its resource."""
_TIMES = frozenset(
    {"timestamp", "log_append_time_ms", "last_timestamp", "base_timestamp", "max_timestamp"}
    | {"last_fetch_timestamp", "last_caught_up_timestamp", "transaction_start_time_ms"}
)
_UNORDERED = frozenset({"partitions", "partition_indexes"})
_CHOSEN_ID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}|\b[A-Za-z0-9_-]{22}$")
_DAY_MS = 86_400_000
_MARKER_BYTES = 6
"""Bytes of the value of a marker in Kafka's form: its version and the coordinator's epoch."""


class Names:
    """The names of what one node has chosen: `<id of orders>`, `<member 1>`, `<producer 1>`, in order of appearance."""

    def __init__(self, addresses: Sequence[str], topic_ids: dict[str, bytes]) -> None:
        host = addresses[0].rpartition(":")[0]
        ports = {int(address.rpartition(":")[2]): number for number, address in enumerate(addresses, 1)}
        only = len(addresses) == 1
        self._own: dict[str, dict[Any, str]] = {
            "host": {host: "<host>"},
            "port": {port: "<port>" if only else f"<port of {number}>" for port, number in ports.items()},
        }
        self._topic_ids = topic_ids
        self._former_ids: dict[bytes, str] = {}
        self._chosen: dict[str, list[object]] = {"member": [], "producer": []}
        self._by_field: dict[str, Callable[[Any], Any]] = {
            "topic_id": self._topic,
            "member_id": self._member,
            "leader": self._member,
            "producer_id": lambda value: value if value < 0 else self._nth("producer", value),
            "session_id": lambda value: value and "<session>",
            "cluster_id": lambda value: value and "<cluster>",
            "log_dir": lambda value: value and "<directory>",
            "replica_directory_id": lambda value: "" if value == ZERO_UUID else "<directory>",
            "total_bytes": lambda value: value if value < 0 else "<bytes>",
            "usable_bytes": lambda value: value if value < 0 else "<bytes>",
            "finalized_features_epoch": lambda value: value if value < 0 else "<epoch>",
        }

    def leaf(self, field: str, value: Any) -> Any:
        """A value of a field, by its name if the node has chosen the value."""
        if field.endswith("error_code"):
            return error_name(value)
        if field in self._own and value in self._own[field]:
            return self._own[field][value]
        if field in _TIMES and value > time.time() * 1000 - _DAY_MS:
            return "<now>"
        if field in self._by_field and value is not None:
            return self._by_field[field](value)
        return value

    def learn_topics(self, response: Any) -> None:
        """Remember the ids that this answer gives to topics."""
        for topic in getattr(response, "topics", None) or ():
            name, topic_id = getattr(topic, "name", None), getattr(topic, "topic_id", ZERO_UUID)
            if name and topic_id != ZERO_UUID:
                former = self._topic_ids.get(name, topic_id)
                if former != topic_id:  # deleted and created again
                    count = sum(each.endswith(f" of {name}>") for each in self._former_ids.values())
                    self._former_ids[former] = f"<id {count + 1} of {name}>"
                self._topic_ids[name] = topic_id

    def _topic(self, value: bytes) -> str:
        if value == ZERO_UUID:
            return ""
        for name, known in self._topic_ids.items():
            if known == value:
                return f"<id of {name}>"
        return self._former_ids.get(value) or value.hex()

    def _member(self, value: str) -> str:
        return _CHOSEN_ID.sub(lambda found: self._nth("member", found[0]), value)

    def _nth(self, kind: str, value: object) -> str:
        seen = self._chosen[kind]
        if value not in seen:
            seen.append(value)
        return f"<{kind} {seen.index(value) + 1}>"


def error_name(code: int) -> str:
    """`UNKNOWN_MEMBER_ID (25)`."""
    return f"{ErrorCode(code).name} ({code})" if code in set(ErrorCode) else f"error {code}"


def tree_of(message: Any, names: Names) -> Tree:
    """A message or struct without what is not compared."""
    tree: Tree = {
        field.name: _value(field.name, getattr(message, field.name), names)
        for field in schema_of(type(message)).fields
        if field.name not in _NOT_COMPARED
    }
    if tags := unknown_tags(message):
        tree["unknown tagged fields"] = sorted(tags)
    return tree


def _value(field: str, value: Any, names: Names) -> Any:
    if field == "records" and not isinstance(value, int):  # ListOffsets has a number of this name
        return _batches(value, names)
    if hasattr(value, "__schema__"):
        return tree_of(value, names)
    if isinstance(value, Sequence) and not isinstance(value, str | bytes):
        if value and hasattr(value[0], "__schema__"):
            return _keyed([tree_of(element, names) for element in value])
        if not value:
            return {}  # as an array of structs without elements
        return sorted(value) if field in _UNORDERED else list(value)
    return names.leaf(field, value)


def _keyed(elements: list[Tree]) -> Tree:
    keyed: Tree = {}
    for at, element in enumerate(elements):
        named = ["key"] if "key" in element else [name for name in _IDENTITY if name in element]
        if "permission_type" in element:
            named += _RULE
        parts = [str(element[name]) for name in named if element[name] not in (None, "")]
        key = f"[{'/'.join(parts)}]" if named else f"[{at}]"
        while key in keyed:  # named twice
            key = f"{key[:-1]}+]"
        keyed[key] = element
    return keyed


def _batches(records: Any, names: Names) -> Any:
    """Batches as trees. Sizes and checksums are left out: two builds of one codec need not agree on sizes."""
    if records is None:
        return None
    batches: Tree = {}
    end = 0
    for position, header in iter_batches(records):
        end = position + header.size_bytes
        fields: tuple[str, ...] = (
            "base_offset",
            "partition_leader_epoch",
            "attributes",
            "last_offset_delta",
            "base_timestamp",
        )
        fields += ("max_timestamp", "producer_id", "producer_epoch", "base_sequence", "records_count")
        batch: Tree = {name: names.leaf(name, getattr(header, name)) for name in fields}
        batch["content"] = content = _content(records, position, names)
        if header.is_control and header.is_transactional and isinstance(content, list):
            (offset, timestamp, key, value, headers) = content[0]
            batch["content"] = [(offset, timestamp, key, value[:_MARKER_BYTES], headers)]
            batch["bytes behind the marker"] = len(value) - _MARKER_BYTES
        batches[f"[{len(batches)}]"] = batch
    batches["bytes of a cut batch"] = len(records) - end
    return batches


def _content(records: Any, position: int, names: Names) -> Any:
    try:
        found = read_records(records, position)
    except CorruptRecords as fault:
        return f"unreadable: {type(fault).__name__}"
    return [(r.offset, names.leaf("timestamp", r.timestamp), r.key, r.value, r.headers) for r in found]
