"""The cost of a keyed consumer for a handler that does nothing, beside lanes made by hand."""

import json
import subprocess
import sys
from typing import Final

from benchmarks.peers.peer import TAILRACE, Peer, running, tailrace
from benchmarks.results.figures import Chart, Column, Section, Target
from benchmarks.results.rounds import Rounds
from tailrace.client.blocking import Producer

NAME = "handlers"
DEFAULT = 200_000
"""Records of a round."""
BY_HAND: Final = "lanes by hand"
BY_HAND_OVER_OURS: Final = "lanes by hand, our consumer"
CLIENTS: Final = {TAILRACE: "keyed", BY_HAND: "by-hand", BY_HAND_OVER_OURS: "by-hand-over-ours"}
KINDS: Final = {"threads": 8.0, "asyncio": 6.0}
"""The most microseconds of CPU a record, by the kind of the handler."""
MOST_TIMES_BY_HAND: Final = {"threads": 3.0, "asyncio": 1.0}
"""The most of what lanes made by hand cost in the same run. The limits in microseconds are from a machine on which
lanes made by hand take 2.6 us in threads, and 5.9 us on an event loop."""
KEYS: Final = 5_003
PARTITIONS: Final = 4
TOPIC: Final = "handlers"
_TIMEOUT_S: Final = 300

CONDITIONS = (
    f"One node, {PARTITIONS} partitions, {KEYS:,} keys, records of 100 B; a client in a process of its own calls a "
    "handler that does nothing, 16 records at a time: a plain function in threads, or a coroutine function on an event "
    "loop. By hand: a queue for each key over confluent-kafka, or over tailrace.Consumer, emptied by 16 threads or by "
    "tasks, without commits and retries. CPU: of the client's process, reading included, from the first call of the "
    "handler to the last."
)


def measure(rounds: Rounds, count: int) -> Section:
    with running(tailrace("page-cache")) as peer:
        write(peer, count)
        for number in rounds:
            for kind in KINDS:
                for name in rounds.in_turn(list(CLIENTS)):
                    client = CLIENTS[name]
                    rounds.record(kind, name, **_load(peer, kind, client, f"{kind}-{client}-{number}", count))
    columns = (
        Column("cpu_us", "CPU us/record", digits=1, beside=(BY_HAND, BY_HAND_OVER_OURS), shows_rounds=True),
        Column("rate", "records/s"),
    )
    targets = [
        Target(test=kind, server=TAILRACE, quantity="cpu_us", limit=limit, unit="us", is_upper=True)
        for kind, limit in KINDS.items()
    ]
    targets += [
        Target(test=kind, server=TAILRACE, quantity="cpu_us", limit=limit, beside=BY_HAND, is_upper=True)
        for kind, limit in MOST_TIMES_BY_HAND.items()
    ]
    return rounds.section(
        NAME,
        "Handlers that do nothing",
        CONDITIONS,
        columns,
        targets,
        chart=Chart("cpu_us", "CPU microseconds a record, median; points are rounds"),
    )


def write(peer: Peer, count: int) -> None:
    """Write so many records."""
    peer.create_topics({TOPIC: PARTITIONS})
    peer.wait_for_leaders({TOPIC: PARTITIONS})
    with Producer(peer.address) as producer:
        for number in range(count):
            producer.send(TOPIC, b"%0100d" % number, key=b"key-%d" % (number * 7_919 % KEYS))


def _load(peer: Peer, kind: str, client: str, group: str, count: int) -> dict[str, float]:
    command = [sys.executable, "-m", "benchmarks.loads.handlers", kind, client]
    command += [peer.address, TOPIC, group, str(count)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False)
    if done.returncode:
        raise RuntimeError(f"{kind}, {client}: {done.stderr.strip()}")
    found: dict[str, float] = json.loads(done.stdout)
    return found
