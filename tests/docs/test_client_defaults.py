"""docs/client-defaults.md is true: each limit has a row, and no limit lies below what a client sends by default."""

import ctypes
import inspect
from collections import Counter
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import NamedTuple

import aiokafka
import confluent_kafka
import kafka
import pytest

from tailrace.coordinators.config import MEMBERS_OF_FULL_SIZE
from tailrace.coordinators.groups.joining import MOST_PROTOCOLS
from tailrace.fetch_session.session_cache import MAX_PARTITIONS
from tailrace.net.limits import ListenerLimits
from tailrace.node.settings.table import BROKER_SETTINGS
from tailrace.protocol.messages.fetch import FetchRequest
from tailrace.protocol.records.batch import MOST_RECORDS_TAKEN
from tailrace.protocol.records.compression import MAX_DECOMPRESSED
from tailrace.protocol.registry import api_of
from tailrace.protocol.schema import MAX_ELEMENTS
from tailrace.server.produce.answers import MAX_TIMEOUT_MS

DOCS = Path(__file__).parents[2] / "docs"
SECTIONS = ("## Connections and frames", "## Requests", "## Records", "## Groups and topics")
"""The sections of docs/limits.md on what clients send; the rest is about our own programs and hostile bytes."""
CLIENTS = ("Java", "librdkafka", "franz-go", "sarama", "kafkajs", "aiokafka", "kafka-python")
SMALLEST_RECORD_BYTES = 7
NAME_BYTES = 249 + 2
TOPICS = 5_000


def setting(name: str) -> int:
    value = BROKER_SETTINGS[name].default
    assert isinstance(value, int)
    return value


LIMITS = {
    "a frame of Produce, JoinGroup or SyncGroup, or of a commit of offsets": setting("socket.request.max.bytes"),
    "any other frame": min(ListenerLimits().other_frame_bytes, ListenerLimits().fetch_frame_bytes),
    "an idle connection": setting("connections.max.idle.ms"),
    "elements of all arrays": MAX_ELEMENTS,
    "elements of a Fetch": api_of(FetchRequest).max_elements,
    "a batch": setting("message.max.bytes"),
    "records of a batch": MOST_RECORDS_TAKEN,
    "the size of a batch when decompressed": MAX_DECOMPRESSED,
    "partitions of a fetch session": MAX_PARTITIONS,
    "the wait of a Produce": MAX_TIMEOUT_MS,
    "the metadata that a member states, and its assignment": setting("group.max.metadata.bytes"),
    "the metadata of all members of a classic group, with their assignments": MEMBERS_OF_FULL_SIZE
    * setting("group.max.metadata.bytes"),
    "how long a transaction may be open": setting("transaction.max.timeout.ms"),
    "protocols of a member of a classic group": MOST_PROTOCOLS,
    "partitions of a node": setting("max.partitions.per.node"),
}
"""The limits that the page has numbers for, as the code has them."""


class DefaultsRow(NamedTuple):
    """A row of the page's table of numbers."""

    what: str
    limit: str
    sent: Mapping[str, int | None]
    """By client; None where only the application decides."""


def cells_of(page: str, section: str) -> Iterator[list[str]]:
    """The rows of the tables in a section, without their heads. Cells behind an empty one are not told apart."""
    text = (DOCS / page).read_text().partition(f"\n{section}\n")[2].partition("\n## ")[0]
    for line in text.splitlines():
        if line.startswith("| ") and not line.startswith(("| What ", "| Limit ")):
            yield line[2:].removesuffix(" |").split(" | ")


def number(cell: str) -> int | None:
    return None if cell == "-" else int(cell.replace(",", ""))


NUMBERS = [
    DefaultsRow(what, limit, dict(zip(CLIENTS, map(number, cells), strict=True)))
    for what, limit, *cells in cells_of("client-defaults.md", "## In numbers")
]
WORDS = list(cells_of("client-defaults.md", "## In words"))


def test_every_limit_has_a_number_or_a_reason() -> None:
    limits = [line[0] for section in SECTIONS for line in cells_of("limits.md", section)]
    assert len(limits) > 100
    in_numbers = {row.limit for row in NUMBERS}
    in_words = [limit for limit, _ in WORDS]
    assert [name for name, count in Counter(in_words).items() if count > 1] == []
    assert in_numbers & set(in_words) == set()
    assert sorted(in_numbers | set(in_words)) == sorted(set(limits))
    assert [reason for _, reason in WORDS if not reason.endswith(".")] == []


@pytest.mark.parametrize("row", NUMBERS, ids=lambda row: row.what[:40])
def test_no_limit_is_below_what_a_client_sends(row: DefaultsRow) -> None:
    limit = LIMITS[row.limit]
    assert {client: sent for client, sent in row.sent.items() if sent is not None and sent > limit} == {}, limit


def sent(what: str) -> Mapping[str, int | None]:
    (row,) = [row for row in NUMBERS if row.what.startswith(what)]
    return row.sent


def test_numbers_that_follow_from_others() -> None:
    """Names are sent once for each assignor; the leader sends the assignment of all topics once more."""
    assignors = sent("assignors that")
    names = {client: count and count * TOPICS * NAME_BYTES for client, count in assignors.items()}
    assert sent("bytes of the names") == names
    assert sent("bytes of these names from ten members") == {
        client: 10 * ((count or 0) + 1) * TOPICS * NAME_BYTES for client, count in assignors.items()
    }
    collected, plain, records = sent("bytes in which"), sent("bytes of a batch in plain"), sent("records of a batch")
    assert plain["Java"] == 200 * (collected["Java"] or 0)
    for client in ("aiokafka", "kafka-python"):
        assert records[client] == (plain[client] or 0) // SMALLEST_RECORD_BYTES
    assert records["Java"] == (plain["Java"] or 0) // SMALLEST_RECORD_BYTES


# The installed clients


def test_kafka_python_has_the_defaults_of_the_page() -> None:
    producer, consumer = kafka.KafkaProducer.DEFAULT_CONFIG, kafka.KafkaConsumer.DEFAULT_CONFIG
    _has(
        "kafka-python",
        request=producer["max_request_size"],
        collected=producer["batch_size"],
        wait=producer["request_timeout_ms"],
        transaction=producer["transaction_timeout_ms"],
        idle=min(producer["connections_max_idle_ms"], consumer["connections_max_idle_ms"]),
        assignors=len(consumer["partition_assignment_strategy"]),
    )


def test_aiokafka_has_the_defaults_of_the_page() -> None:
    producer, consumer = (
        {name: parameter.default for name, parameter in inspect.signature(made).parameters.items()}
        for made in (aiokafka.AIOKafkaProducer, aiokafka.AIOKafkaConsumer)
    )
    _has(
        "aiokafka",
        request=producer["max_request_size"],
        collected=producer["max_batch_size"],
        wait=producer["request_timeout_ms"],
        transaction=producer["transaction_timeout_ms"],
        idle=min(producer["connections_max_idle_ms"], consumer["connections_max_idle_ms"]),
        assignors=len(consumer["partition_assignment_strategy"]),
    )


def test_librdkafka_has_the_defaults_of_the_page() -> None:
    _has(
        "librdkafka",
        request=int(librdkafkas("message.max.bytes")),
        collected=int(librdkafkas("batch.size")),
        wait=sent("ms that a Produce")["librdkafka"],  # a setting of topics
        transaction=int(librdkafkas("transaction.timeout.ms")),
        idle=int(librdkafkas("connections.max.idle.ms")) or None,
        assignors=len(librdkafkas("partition.assignment.strategy").split(",")),
    )
    assert int(librdkafkas("batch.num.messages")) == sent("records of a batch")["librdkafka"]


def _has(client: str, **defaults: int | None) -> None:
    rows = {
        "request": "bytes of a Produce",
        "collected": "bytes in which",
        "wait": "ms that a Produce",
        "transaction": "ms that a transaction",
        "idle": "ms after which",
        "assignors": "assignors that",
    }
    assert {name: sent(what)[client] for name, what in rows.items()} == defaults


def librdkafkas(name: str) -> str:
    """The default of a setting of librdkafka, asked of the library itself."""
    library = _library()
    room, size = ctypes.create_string_buffer(512), ctypes.c_size_t(512)
    conf = ctypes.c_void_p(library.rd_kafka_conf_new())
    try:
        assert library.rd_kafka_conf_get(conf, name.encode(), room, ctypes.byref(size)) == 0, name
    finally:
        library.rd_kafka_conf_destroy(conf)
    return room.value.decode()


@cache
def _library() -> ctypes.CDLL:
    (path,) = Path(confluent_kafka.__file__).parents[1].glob("confluent_kafka.libs/librdkafka*.so*")
    library = ctypes.CDLL(str(path))
    library.rd_kafka_conf_new.restype = ctypes.c_void_p
    return library
