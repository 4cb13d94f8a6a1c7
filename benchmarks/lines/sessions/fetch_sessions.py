"""Bytes and broker CPU of one fetch, full or incremental, by partitions and changes (KIP-227)."""

import resource
import time
from contextlib import ExitStack
from pathlib import Path

from benchmarks.loads.sessions import Exchange, Fetcher, Place, appending_frame, places_of, spread
from benchmarks.peers.echo import Echo, echo
from benchmarks.peers.kafka import KAFKA, apache_kafka
from benchmarks.peers.peer import TAILRACE, Peer, running, tailrace
from benchmarks.results.figures import Chart, Column, Section, Target
from benchmarks.results.rounds import Rounds
from benchmarks.wire import Wire, batch

NAME = "fetch-sessions"
DEFAULT = 100_000
SIZES = (10, 100, 1_000, 10_000, 100_000)
CHANGES = (0, 1, 100, 10_000)
PER_TOPIC = 1_000
VALUE_BYTES = 100
FETCHES = {0: 10_000, 1: 10_000, 100: 200, 10_000: 10}
ROW = 16
"""The number of short fetches that are sent together: a busy broker has no wake-up for each fetch, and its code is
cached."""
"""The most fetches of a round, by the number of changes; fewer if that many take longer than LONGEST_S."""
LEAST_FETCHES = 5
LONGEST_S = 10.0
FULL_PARTITIONS = 200_000
"""The number of partitions in all full fetches of a round together."""
MOST_FULL_FETCHES = 500
LEAST_FULL_FETCHES = 3
FILES_OF_KAFKA = 3
"""The number of files that Kafka keeps for each partition: an open log and two mapped indexes."""
SETTLE_S = 5.0
LEAST_CHANGES_AGAIN = 100
FULL_AGAIN = "full fetch of those"
MOST_BYTES, MOST_CPU_US = 100.0, 50.0

CONDITIONS = (
    f"One node, topics of {PER_TOPIC:,} partitions, page cache. One connection, one Fetch v17 in flight that does not "
    f"wait; frames are made before. Changed: a record of {VALUE_BYTES} B is appended to each of so many partitions "
    "before each fetch; the fetch names these partitions with their new offsets, as a consumer does, and its answer "
    "has them. Full: a fetch outside of a session names all partitions, which have no new records. "
    f"{FULL_AGAIN.capitalize()}: the changed partitions are fetched at the same offsets outside of the session too, in "
    "turn before the session's fetch and after it, since the second of two reads of the same records is cheaper. 0 "
    f"and 1 changed: {ROW} fetches are sent together, so that the node is at work as in a busy cluster. For 1 changed, "
    f"{ROW} partitions change before; an answer has room for one batch, and each fetch names the partition of the "
    f"answer before. One more fetch takes the last change, and its time is part of the time of the {ROW}. Bytes: the "
    "whole frames. CPU: of the node's process, all threads, for each exchange; less the CPU of an echo of the same "
    "sizes on a node's event loop, except for fetches that are sent together. The CPU does not include the appends, "
    f"and includes all other work of the process. A round has as many fetches as fit into {LONGEST_S:g} s, "
    f"{FETCHES[1]:,} at most, and fewer with many changes."
)


def measure(rounds: Rounds, most: int) -> Section:
    sizes = [size for size in SIZES if size <= most]
    with ExitStack() as stack:
        echoing = stack.enter_context(echo())
        ours = tailrace("page-cache", settings={"max.partitions.per.node": str(most + PER_TOPIC)})
        peers = [stack.enter_context(running(ours)), *rounds.enter(stack, KAFKA, running(apache_kafka()))]
        room = {peer.name: most if peer.name == TAILRACE else _room_of_kafka() for peer in peers}
        runs = {
            peer.name: _Run(rounds, peer, echoing, max(size for size in sizes if size <= room[peer.name]))
            for peer in peers
        }
        for size in sizes:
            taking_part = [runs[peer.name] for peer in peers if size <= room[peer.name]]
            if len(taking_part) < len(peers):
                rounds.miss(
                    f"{KAFKA}, {size:,} partitions,", f"above {room[KAFKA]:,} it has too few files or maps here"
                )
            for _ in rounds:
                for run in rounds.in_turn(tuple(taking_part)):
                    if not run.takes_part(size):
                        taking_part.remove(run)
    return _section(rounds, most)


def _section(rounds: Rounds, most: int) -> Section:
    columns = (
        Column("request_B", "request B"),
        Column("answer_B", "answer B"),
        Column("cpu_us", "CPU us", digits=1, beside=(KAFKA,)),
        Column("net_cpu_us", "CPU us less an echo", digits=1, beside=(KAFKA,), shows_rounds=True),
    )
    return rounds.section(
        NAME,
        "One fetch, by partitions and changes",
        CONDITIONS,
        columns,
        _targets(most) if most == DEFAULT else (),
        chart=Chart(
            "net_cpu_us", "CPU microseconds less an echo, median; points are rounds; logarithmic", is_logarithmic=True
        ),
    )


def _targets(most: int) -> list[Target]:
    idle, single, many = (_test(most, changed) for changed in (0, 1, 10_000))
    return [
        Target(test=idle, server=TAILRACE, quantity="request_B", limit=MOST_BYTES, unit="B", is_upper=True),
        Target(test=idle, server=TAILRACE, quantity="answer_B", limit=MOST_BYTES, unit="B", is_upper=True),
        Target(test=single, server=TAILRACE, quantity="net_cpu_us", limit=MOST_CPU_US, unit="us", is_upper=True),
        Target(
            test=many,
            server=TAILRACE,
            quantity="cpu_us",
            limit=1.0,
            beside=f"{TAILRACE}, {FULL_AGAIN}",
            is_upper=True,
        ),
    ]


def _test(size: int, changed: int) -> str:
    return f"{size:,} partitions, {changed:,} changed"


def _room_of_kafka() -> int:
    maps = int(Path("/proc/sys/vm/max_map_count").read_text())
    files = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    return min(maps // FILES_OF_KAFKA, files - PER_TOPIC)


class _Run:
    """A server with its partitions, created once, and the offset up to which each partition is written."""

    def __init__(self, rounds: Rounds, peer: Peer, echoing: Echo, partitions: int) -> None:
        self._rounds = rounds
        self._peer = peer
        self._echo = echoing
        topics = {f"fetch-{start // PER_TOPIC}": PER_TOPIC for start in range(0, partitions, PER_TOPIC)}
        for name, count in topics.items():
            peer.create_topics({name: count})
        peer.wait_for_leaders(topics)
        with Wire(peer.address) as wire:
            self._places = places_of(wire, list(topics))
        self._ends = [0] * len(self._places)
        self._records = batch(1, VALUE_BYTES)
        time.sleep(SETTLE_S)

    def takes_part(self, size: int) -> bool:
        """Whether a round of this size ended. Apache Kafka may leave a Produce of 10,000 partitions without an answer.
        If that happens with Tailrace, raises the OSError.
        """
        try:
            self._round(size)
        except OSError as fault:
            if self._peer.name == TAILRACE:
                raise
            self._rounds.miss(f"{self._peer.name}, {size:,} partitions,", f"{fault} after a minute without an answer")
            return False
        return True

    def _round(self, size: int) -> None:
        places = self._places[:size]
        with Wire(self._peer.address) as wire:
            fetcher = Fetcher(wire, places, clock=self._peer.process.cpu_clock)
            fetcher.offsets = self._ends[:size]
            self._full(fetcher, size)
            fetcher.open()
            for changed in CHANGES:
                if changed <= size:
                    self._incremental(wire, fetcher, places, changed)
            fetcher.close_session()

    def _full(self, fetcher: Fetcher, size: int) -> None:
        frame = fetcher.full_frame(range(size))
        count = min(max(FULL_PARTITIONS // size, LEAST_FULL_FETCHES), MOST_FULL_FETCHES)
        exchanges = [fetcher.take(frame) for _ in range(count)]
        assert fetcher.answered_partitions() == size, "a full answer has every partition"
        self._record(f"{size:,} partitions, full", self._peer.name, exchanges)

    def _incremental(self, wire: Wire, fetcher: Fetcher, places: list[Place], changed: int) -> None:
        if changed <= 1:
            self._rows(wire, fetcher, places, changed)
            return
        chosen = spread(changed, len(places))
        append = appending_frame([places[number] for number in chosen], self._records)
        exchanges, again = [], []
        began = time.perf_counter()
        for number in range(FETCHES[changed]):
            if number >= LEAST_FETCHES and time.perf_counter() - began > LONGEST_S:
                break
            if chosen:
                wire.socket.sendall(append)
                wire.receive()
                for place in chosen:
                    fetcher.offsets[place] = self._ends[place]
                    self._ends[place] += 1
            is_repeated = changed >= LEAST_CHANGES_AGAIN
            # Made after the answer to the append, so that the node has gone back to its loop by then.
            if is_repeated and number % 2:
                again.append(fetcher.take(fetcher.full_frame(chosen)))
            exchanges.append(fetcher.incremental(chosen))
            assert fetcher.answered_partitions() == changed, "each change is answered, and nothing else"
            if is_repeated and not number % 2:
                again.append(fetcher.take(fetcher.full_frame(chosen)))
        for number in chosen:
            fetcher.offsets[number] = self._ends[number]
        fetcher.incremental(chosen)  # nothing is left for the next test
        self._record(_test(len(places), changed), self._peer.name, exchanges)
        if again:
            self._record(_test(len(places), changed), f"{self._peer.name}, {FULL_AGAIN}", again)

    def _rows(self, wire: Wire, fetcher: Fetcher, places: list[Place], changed: int) -> None:
        """Fetches with no change, or with a single change, sent in rows: an answer has room for one batch."""
        chosen = spread(min(ROW, len(places)), len(places)) if changed else []
        append = appending_frame([places[number] for number in chosen], self._records)
        exchanges: list[Exchange] = []
        began = time.perf_counter()
        while len(exchanges) < FETCHES[changed]:
            if len(exchanges) >= LEAST_FETCHES and time.perf_counter() - began > LONGEST_S:
                break
            if not changed:
                exchanges += fetcher.take_row([fetcher.incremental_frame() for _ in range(ROW)])
                continue
            for number in chosen:
                fetcher.offsets[number] = self._ends[number]
            fetcher.incremental(chosen)  # every partition is at its end, and clean
            fetcher.incremental()
            wire.socket.sendall(append)
            wire.receive()
            frames = []
            for behind in (None, *chosen):  # each fetch names the place before; the last fetch has nothing left
                if behind is not None:
                    self._ends[behind] += 1
                    fetcher.offsets[behind] = self._ends[behind]
                frames.append(
                    fetcher.incremental_frame(() if behind is None else (behind,), max_bytes=len(self._records))
                )
            row = fetcher.take_row(frames)
            if self._peer.name == TAILRACE:  # Kafka's first answer has the other high watermarks too
                assert len({answer.answer_bytes for answer in row[:-1]}) == 1, "each answer has one change"
            whole_s = sum(exchange.cpu_s for exchange in row)
            exchanges += [row[1]._replace(cpu_s=whole_s / len(chosen))] * len(chosen)
        assert fetcher.answered_partitions() == 0, "each change is answered once"
        self._record(_test(len(places), changed), self._peer.name, exchanges, are_in_rows=True)

    def _record(self, test: str, server: str, exchanges: list[Exchange], *, are_in_rows: bool = False) -> None:
        request, answer = exchanges[-1].request_bytes, exchanges[-1].answer_bytes
        cpu_s = sum(exchange.cpu_s for exchange in exchanges) / len(exchanges)
        echo_s = 0.0 if are_in_rows else self._echo.cpu_seconds(request, answer, len(exchanges))
        self._rounds.record(
            test, server, request_B=request, answer_B=answer, cpu_us=cpu_s * 1e6, net_cpu_us=(cpu_s - echo_s) * 1e6
        )
