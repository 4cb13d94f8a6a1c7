"""The guides for users of other clients: their programs run, and their tables are complete and true.

A row of a table has names of the other client in its first cell, and the names of ours in its second cell; `the same`
there stands for all names of the first cell.
"""

import inspect
import re
from collections.abc import Iterator
from dataclasses import fields
from keyword import iskeyword
from pathlib import Path
from typing import Any, NamedTuple

import aiokafka
import aiokafka.admin
import confluent_kafka
import confluent_kafka.admin
import kafka
import pytest

import tailrace
from tailrace import aio
from tailrace.client.reader_settings import ConsumerSettings
from tailrace.client.settings import ClientSettings
from tailrace.client.writer_settings import ProducerSettings
from tailrace.testing import Cluster

GUIDES = Path(__file__).parents[2] / "docs" / "guides"
_SPAN = re.compile(r"`([^`]+)`")
_NAME = re.compile(r"[A-Za-z_][A-Za-z_.0-9]*")
SETTINGS = {setting.name for cls in (ClientSettings, ProducerSettings, ConsumerSettings) for setting in fields(cls)}
CLASSES = ("Producer", "Consumer", "Admin")


class PortedClient(NamedTuple):
    """Another client: its classes of producer, consumer and administrator, and where ours are."""

    classes: tuple[type, type, type]
    ours: Any

    def settings(self) -> set[str]:
        """The settings of its classes, as far as they can be asked."""
        found = set()
        for cls in self.classes:
            config = getattr(cls, "DEFAULT_CONFIG", None)
            if config is not None:
                found |= set(config)
            elif cls.__module__.startswith("aiokafka"):
                found |= set(inspect.signature(cls).parameters) - {"topics"}
        return found


PORTED = {
    "from-aiokafka.md": PortedClient(
        (aiokafka.AIOKafkaProducer, aiokafka.AIOKafkaConsumer, aiokafka.admin.AIOKafkaAdminClient), aio
    ),
    "from-confluent-kafka.md": PortedClient(
        (confluent_kafka.Producer, confluent_kafka.Consumer, confluent_kafka.admin.AdminClient), tailrace
    ),
    "from-kafka-python.md": PortedClient((kafka.KafkaProducer, kafka.KafkaConsumer, kafka.KafkaAdminClient), tailrace),
}


def rows(guide: str, section: str) -> Iterator[tuple[str, str]]:
    """The first two cells of each row of the table in this section."""
    text = (GUIDES / guide).read_text().partition(f"\n## {section}\n")[2].partition("\n## ")[0]
    for line in text.splitlines():
        if line.startswith("| ") and not line.startswith("| --"):
            first, second, *_ = line.strip("| ").split(" | ")
            yield first, second.rstrip(" |")


def named(cell: str) -> list[str]:
    """The names in the cell, one of each span: a call without its arguments."""
    found = (_NAME.match(span) for span in _SPAN.findall(cell))
    return [match.group().rstrip(".") for match in found if match is not None]


@pytest.mark.parametrize("guide", PORTED)
def test_each_method_and_each_setting_of_the_other_client_has_a_row(guide: str) -> None:
    peer = PORTED[guide]
    for cls, section in zip(peer.classes, CLASSES, strict=True):
        listed = {name for first, _ in rows(guide, section) for name in named(first)}
        public = {name for name in dir(cls) if not name.startswith("_") and name != "DEFAULT_CONFIG"}
        assert public - listed == set(), section
    assert peer.settings() - {name for first, _ in rows(guide, "Settings") for name in named(first)} == set()


@pytest.mark.parametrize("guide", PORTED)
def test_each_method_of_ours_that_a_row_names_exists(guide: str) -> None:
    ours = PORTED[guide].ours
    checked = 0
    for section in CLASSES:
        for first, second in rows(guide, section):
            names = named(first) if second.startswith("the same") else named(second)
            for name in names:
                owner, _, method = name.rpartition(".")
                if owner in ("", "Admin") and not iskeyword(method):
                    where = getattr(ours, owner or section)
                    known = hasattr(where, method) or method in SETTINGS or hasattr(tailrace, method)
                    assert known, (section, name)
                    checked += 1
    assert checked > 40


@pytest.mark.parametrize("guide", PORTED)
def test_the_settings_of_the_other_client_are_ours_where_the_table_says_so(guide: str) -> None:
    for first, second in rows(guide, "Settings"):
        names = {name.replace(".", "_") for name in named(first)}
        if second.startswith("the same"):
            both = {"key_serializer", "value_serializer", "key_deserializer", "value_deserializer"}
            assert names - SETTINGS - both == set()
            assert len(names) > 1
        elif not first.startswith(("aiokafka", "confluent", "kafka", "`partitioner`")):
            assert names & SETTINGS == set(), first


@pytest.mark.parametrize(
    ("guide", "last_lines"),
    [
        ("from-aiokafka.md", ["3"]),
        ("from-confluent-kafka.md", ["written: 0", "payments * 0 b'alice' b'250'"]),
        ("from-kafka-python.md", ["payments * 0 b'alice' {'cents': 250}", "*{*: 0} {*: 1}"]),
    ],
)
def test_the_programs_of_a_guide_run(guide: str, last_lines: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    blocks = re.findall(r"^```python\n(.*?)^```", (GUIDES / guide).read_text(), re.MULTILINE | re.DOTALL)
    assert blocks
    names: dict[str, Any] = {}
    with Cluster() as cluster:
        for block in blocks:
            exec(block.replace('"127.0.0.1:9092"', f'"{cluster.bootstrap_servers}"'), names)
    lines = capsys.readouterr().out.splitlines()
    for wanted in last_lines:
        pattern = re.escape(wanted).replace(r"\*", ".*")
        assert any(re.fullmatch(pattern, line) for line in lines), lines
