"""`tailrace groups move`."""

import json
from uuid import uuid4

import pytest

from tailrace.client.blocking import Consumer, Producer, Rectangle, TopicPartition
from tailrace.model.key_ranges import HASH_SPACE
from tailrace.testing import Cluster
from testkit.programs.commands import run_command

HALF = HASH_SPACE // 2


@pytest.fixture
def name(tailrace_cluster: Cluster) -> str:
    """A group that has half of the hashes at offset 10 and the other half at 2, of 20 records."""
    name = f"moved-{uuid4()}"
    partition = TopicPartition(name, 0)
    with Producer(tailrace_cluster.bootstrap_servers) as producer:
        for number in range(20):
            producer.send(name, b"value", key=b"%d" % number)
        producer.flush()
    with Consumer(tailrace_cluster.bootstrap_servers, group=name) as consumer:
        consumer.commit(ranges={partition: [Rectangle(0, 9, 0, HALF - 1), Rectangle(0, 1, HALF, HASH_SPACE - 1)]})
    return name


def test_a_group_moves_to_a_view_and_back(
    tailrace_cluster: Cluster, name: str, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    where = ("--bootstrap-server", tailrace_cluster.bootstrap_servers)
    view = f"{name}.shared-2"
    planned = run_command(("groups", "move", name, name, view, "--dry-run", *where), capfdbinary)
    head, *rows = planned.out.splitlines()
    assert head.split() == ["GROUP", "TOPIC", "PARTITION", "CURRENT-OFFSET", "NEW-OFFSET", "RANGES"]
    assert [row.split()[1:] for row in rows] == [[view, "0", "-", "10", "0"], [view, "1", "-", "2", "0"]]
    assert planned.err == "nothing has been changed: repeat it without --dry-run\n"
    assert run_command(("groups", "move", name, name, view, *where), capfdbinary).out == planned.out
    back = run_command(("groups", "move", name, view, name, "-o", "json", *where), capfdbinary)
    assert json.loads(back.out) == [
        {"GROUP": name, "TOPIC": name, "PARTITION": 0, "CURRENT-OFFSET": None, "NEW-OFFSET": 2, "RANGES": 1}
    ]
    assert "other clients do these records again" in back.err
    again = run_command(("groups", "move", name, view, name, *where), capfdbinary)
    assert (again.code, again.out) == (1, "")
    assert again.err == f"tailrace: group '{name}' has no committed offset in {view}\n"


def test_a_move_to_a_name_that_is_no_view_says_what_a_view_is(
    tailrace_cluster: Cluster, name: str, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    words = ("groups", "move", name, name, f"{name}.shared-3", "--bootstrap-server", tailrace_cluster.bootstrap_servers)
    done = run_command(words, capfdbinary)
    assert (done.code, done.out) == (1, "")
    assert "a view of T is T.shared-N, N is 2, 4, ... or 256" in done.err
