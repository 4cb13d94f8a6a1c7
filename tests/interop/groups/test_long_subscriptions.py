"""Groups of two members of each client, with its default settings, over thousands of topics with long names.

One topic a table is what users of change data capture have. A member of the classic protocol sends all names once for
each assignor that it knows, and the leader sends all names again as the assignment.
"""

import os
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Final, NamedTuple

import pytest

from interop.kafka_tools import JARS, absent, java
from interop.processes import RunningProgram
from tailrace.client.admin.topics import NewTopic
from tailrace.client.blocking import Admin
from tailrace.testing import Cluster

HERE: Final = Path(__file__).parent
TOPICS: Final = int(os.environ.get("SUBSCRIBED_TOPICS", "700"))
"""`make soak` takes 5,000."""
IS_LONG: Final = TOPICS > 700
NAME_CHARACTERS: Final = 200
PARTITIONS: Final = 2
"""Partitions of a topic: the range assignor gives each member one partition."""
_PER_REQUEST: Final = 1_000
_DEADLINE_S: Final = 60 + TOPICS // 10
PATTERN: Final = "^table[.].*"

pytestmark = [pytest.mark.interop, pytest.mark.timeout(120 + _DEADLINE_S)]


class Client(NamedTuple):
    """A client with its default assignors, or with the settings that name other assignors."""

    name: str
    settings: tuple[str, ...] = ()

    @property
    def label(self) -> str:
        return "-".join((self.name, *self.settings))

    def command(self, bootstrap: str, group: str) -> Sequence[str]:
        where = (bootstrap, group, PATTERN, *self.settings)
        if self.name == JAVA:
            return [*java("-cp", f"{JARS}/*"), str(HERE / "PatternMember.java"), *where]
        return [sys.executable, str(HERE / "pattern_member.py"), self.name, *where]


JAVA: Final = "java"
_KIP_848: Final = "group.protocol=consumer"
_DEFAULTS: Final = (Client(JAVA), Client("librdkafka"))
_OTHERS: Final = (
    Client(JAVA, (_KIP_848,)),
    Client("librdkafka", ("partition.assignment.strategy=cooperative-sticky",)),
    Client("librdkafka", (_KIP_848,)),
    Client("kafka-python"),
    Client("aiokafka"),
)
CLIENTS: Final = _DEFAULTS + (_OTHERS if IS_LONG else ())


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster(config={"log.durability": "page-cache"}) as cluster:
        names = [f"table.{number:05}.".ljust(NAME_CHARACTERS, "x") for number in range(TOPICS)]
        with Admin(cluster.bootstrap_servers) as admin:
            for first in range(0, TOPICS, _PER_REQUEST):
                chosen = names[first : first + _PER_REQUEST]
                admin.create_topics([NewTopic(name=name, partitions=PARTITIONS) for name in chosen])
        yield cluster


@pytest.mark.parametrize("client", CLIENTS, ids=lambda client: client.label)
def test_two_members_of_long_subscriptions_settle(cluster: Cluster, client: Client) -> None:
    if client.name == JAVA and (why := absent()):
        pytest.skip(why)
    command = client.command(cluster.bootstrap_servers, f"group-{client.label}")
    with ExitStack() as stack:
        members = [stack.enter_context(closing(_PatternMember(command))) for _ in range(2)]
        deadline = time.monotonic() + _DEADLINE_S
        while sum(member.partitions for member in members) != TOPICS * PARTITIONS or not all(
            member.partitions for member in members
        ):
            assert time.monotonic() < deadline, [member.state for member in members]
            assert not any(member.has_ended for member in members), [member.state for member in members]
            time.sleep(0.05)
    assert _refusals(cluster) == []


def _refusals(cluster: Cluster) -> list[str]:
    """Lines about connections that the node closed, but for lines of members that had ended."""
    lines = cluster.log_text().splitlines()
    return [line for line in lines if "event=connection-closed" in line and "the client has gone" not in line]


class _PatternMember:
    """A running member, and what the member has said."""

    def __init__(self, command: Sequence[str]) -> None:
        self._program = RunningProgram(command)
        self._partitions = 0
        self._errors: list[str] = []

    @property
    def partitions(self) -> int:
        """The partitions that it was given last."""
        for line in self._program.output():
            self._partitions = int(line)
        return self._partitions

    @property
    def has_ended(self) -> bool:
        return not self._program.is_running

    @property
    def state(self) -> tuple[int, list[str]]:
        """The member's partitions, and the end of what it has said on stderr."""
        self._errors += self._program.errors()
        return self._partitions, self._errors[-20:]

    def close(self) -> None:
        self._program.terminate()
