"""Commands for a group that does not exist."""

from collections.abc import Sequence
from uuid import uuid4

import pytest

from tailrace.client.blocking import Consumer, Producer, TopicPartition
from tailrace.testing import Cluster
from testkit.programs.commands import run_command


@pytest.fixture
def group(tailrace_cluster: Cluster) -> str:
    """A group with an offset."""
    name = f"existing-{uuid4()}"
    with Producer(tailrace_cluster.bootstrap_servers) as producer:
        producer.send(name, b"value")
        producer.flush()
    with Consumer(tailrace_cluster.bootstrap_servers, group=name) as consumer:
        consumer.commit({TopicPartition(name, 0): 1})
    return name


@pytest.mark.parametrize(
    "words",
    [("describe",), ("history",), ("reset-offsets", "--to-earliest"), ("reset-offsets", "--to-latest", "--execute")],
)
def test_a_missing_group_is_answered_with_the_name_of_a_near_group(
    tailrace_cluster: Cluster, group: str, words: Sequence[str], capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    where = ("--bootstrap-server", tailrace_cluster.bootstrap_servers)
    done = run_command(("groups", *words, group[:-1], *where), capfdbinary)
    assert (done.code, done.out) == (1, "")
    assert f"no group '{group[:-1]}' (did you mean '{group}'? `tailrace groups list` shows" in done.err


def test_a_reset_of_named_topics_makes_a_group(
    tailrace_cluster: Cluster, group: str, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    where = ("--bootstrap-server", tailrace_cluster.bootstrap_servers)
    made = f"made-{uuid4()}"
    words = ("groups", "reset-offsets", made, "--topic", group, "--to-latest", "--execute")
    done = run_command((*words, *where), capfdbinary)
    assert (done.code, done.out.splitlines()[1].split()) == (0, [made, group, "0", "-", "1"])
