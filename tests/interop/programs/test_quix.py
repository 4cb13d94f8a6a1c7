"""Quix Streams counts exactly once, while it is killed and its state is lost."""

from pathlib import Path

import pytest

from crash.transactions.committed_reads import committed_values
from interop.librdkafka import Confluent, Message
from interop.programs.quix import absent, quix_counter
from interop.programs.waiting import wait_for
from tailrace.client.blocking import Admin
from tailrace.model.partitions import TopicPartition
from tailrace.testing import Cluster

pytestmark = [pytest.mark.interop, pytest.mark.soak, pytest.mark.timeout(1200)]

SOURCE, TARGET = "words", "counts"
WORDS = [f"word-{number}" for number in range(10)]
ROUNDS = 20
MESSAGES = [Message(word.encode(), b"") for _ in range(ROUNDS) for word in WORDS]
PARTITIONS = 2


@pytest.fixture(scope="module", autouse=True)
def _quix() -> None:
    if why := absent():
        pytest.skip(why)


def counts(bootstrap: str) -> list[int]:
    """The committed counts, in order."""
    places = [TopicPartition(TARGET, partition) for partition in range(PARTITIONS)]
    return sorted(int.from_bytes(value, "big") for place in places for value in committed_values(bootstrap, place))


def test_every_count_is_written_once_though_the_program_is_killed(tmp_path: Path) -> None:
    log = tmp_path / "quix.log"
    with Cluster() as cluster:
        bootstrap = cluster.bootstrap_servers
        with Admin(bootstrap) as admin:
            admin.create_topics({SOURCE: PARTITIONS, TARGET: PARTITIONS})
        for start, state in enumerate(("state", "state", "another-state"), 1):  # the last start reads its changelog
            Confluent().produce(bootstrap, SOURCE, MESSAGES, "lz4")
            with quix_counter(bootstrap, SOURCE, TARGET, tmp_path / state, log):
                # Killed in the middle of its work, but for the last time.
                wait_for_counts(bootstrap, start * len(MESSAGES) - (0 if start == 3 else len(MESSAGES) // 2), log)
        assert counts(bootstrap) == sorted([*range(1, 3 * ROUNDS + 1)] * len(WORDS))


def wait_for_counts(bootstrap: str, number: int, log: Path) -> None:
    """Return when so many counts are committed."""
    wait_for(lambda: len(counts(bootstrap)) >= number, f"{number} counts", log)
