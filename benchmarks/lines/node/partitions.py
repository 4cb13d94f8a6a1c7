"""The cost of many partitions for one node: of their creation, of a restart, and of an idle node."""

import time
from collections.abc import Callable

from benchmarks.peers.first_record import acknowledged
from benchmarks.peers.peer import TAILRACE, Peer, tailrace
from benchmarks.results.figures import Chart, Column, Section, Target
from benchmarks.results.rounds import Rounds

NAME = "partitions"
DEFAULT = 100_000
PER_TOPIC = 1_000
INTERNAL = 100
"""Room for the partitions of internal topics."""
IDLE_S = 5.0
LONGEST_RESTART_S = 5.0
"""The target for a restart with 100,000 partitions."""

CONDITIONS = (
    f"Topics of {PER_TOPIC:,} partitions, created one after the other, without records. Create: the time until all "
    "topics can be used. Stop: from the SIGTERM to the end of the process. Restart: from the start of the process to "
    f"the answer to one record with acks=all for the last partition. Memory: resident (VmRSS), {IDLE_S:g} s after that "
    "answer; 1 MB is 1,000,000 B. Flushed durability; one node alone, no warm-up, a new directory in each round."
)


def measure(rounds: Rounds, partitions: int) -> Section:
    test = f"{partitions:,} partitions"
    for _ in rounds:
        _round(rounds, test, partitions)
    columns = (
        Column("create_s", "create s", digits=1),
        Column("idle_MB", "idle MB"),
        Column("stop_s", "stop s", digits=1),
        Column("restart_s", "restart s", digits=1, shows_rounds=True),
        Column("restarted_MB", "idle MB after restart"),
    )
    target = Target(test=test, server=TAILRACE, quantity="restart_s", limit=LONGEST_RESTART_S, unit="s", is_upper=True)
    return rounds.section(
        NAME,
        "Many partitions on one node",
        CONDITIONS,
        columns,
        # With fewer partitions it would be another target.
        [target] if partitions == DEFAULT else (),
        chart=Chart("restart_s", "seconds to come back, median; points are rounds"),
    )


def _round(rounds: Rounds, test: str, partitions: int) -> None:
    topics = _topics(partitions)
    settings = {"max.partitions.per.node": str(partitions + INTERNAL)}
    with tailrace(settings=settings) as node:
        node.process.start()
        try:
            node.wait_until_ready()
            create_s = _seconds(lambda: _create(node, topics))
            time.sleep(IDLE_S)
            idle_mb = node.process.resident_megabytes()
            stop_s = _seconds(node.process.stop)
            restart_s = _seconds(lambda: _come_back(node, topics))
            time.sleep(IDLE_S)
            rounds.record(
                test,
                node.name,
                create_s=create_s,
                idle_MB=idle_mb,
                stop_s=stop_s,
                restart_s=restart_s,
                restarted_MB=node.process.resident_megabytes(),
            )
        finally:
            node.process.kill()


def _topics(partitions: int) -> dict[str, int]:
    """The names of topics and their numbers of partitions; the last topic takes the rest."""
    return {
        f"many-{start // PER_TOPIC}": min(PER_TOPIC, partitions - start) for start in range(0, partitions, PER_TOPIC)
    }


def _seconds(action: Callable[[], None]) -> float:
    began = time.perf_counter()
    action()
    return time.perf_counter() - began


def _create(node: Peer, topics: dict[str, int]) -> None:
    for name, count in topics.items():
        node.create_topics({name: count})


def _come_back(node: Peer, topics: dict[str, int]) -> None:
    node.process.start()
    node.wait_until_ready()
    last = list(topics)[-1]
    acknowledged(node, last, topics[last] - 1)
