"""Commits of ranges over a state with many rectangles: the broker's CPU (KIP-X)."""

from collections.abc import Sequence
from typing import Final

from benchmarks.peers.peer import TAILRACE, Peer, running, tailrace
from benchmarks.results.figures import Chart, Column, Section, Target
from benchmarks.results.rounds import Rounds
from benchmarks.wire import PRODUCE_VERSION, Wire, batch, produce_request
from tailrace.model.key_ranges import HASH_SPACE
from tailrace.protocol.messages.groups import FindCoordinatorRequest
from tailrace.protocol.messages.offsets import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    WireRectangle,
)

NAME = "range-commits"
DEFAULT = 1_000
"""The number of rectangles in the state."""
COMMITS: Final = 200
"""The number of commits in a round."""
VERSION: Final = 9
GROUP: Final = "workers"
TOPIC: Final = "orders"
RECORDS: Final = 20_000
SIZES: Final = (0, 1, 16, 256)
"""The numbers of rectangles in a commit; 0: a plain commit of another group."""
MOST_MS: Final = 1.5
LIMITED: Final = 16

CONDITIONS = (
    "One node, one partition, page cache. The state has so many rectangles: each covers a range of hashes, and ends "
    "at another offset than its neighbours; hashes between two rectangles hold the stable offset back. Each commit "
    f"moves some of the ends by one offset; one commit is in flight, {COMMITS} a round. 0: a plain commit of a group "
    "without ranges. CPU: of the node's process, all threads, for each commit."
)


def measure(rounds: Rounds, rectangles: int) -> Section:
    with running(tailrace("page-cache")) as peer:
        _write(peer)
        with Wire(peer.address) as wire:
            _find_coordinators(wire)
            ends = [1_000 + number % 7 for number in range(rectangles)]
            for first in range(0, rectangles, LIMITED):
                _commit(wire, ends, range(first, min(first + LIMITED, rectangles)))
            for _ in rounds:
                for size in SIZES:
                    step = max(1, rectangles // max(size, 1))
                    chosen = range(0, rectangles, step)[:size]
                    before = peer.process.cpu_clock()
                    for _ in range(COMMITS):
                        for number in chosen:
                            ends[number] += 1
                        _commit(wire, ends, chosen)
                    spent_ms = (peer.process.cpu_clock() - before) / COMMITS * 1_000
                    rounds.record(f"{size} rectangles in a commit", TAILRACE, cpu_ms=spent_ms)
    target = Target(
        test=f"{LIMITED} rectangles in a commit",
        server=TAILRACE,
        quantity="cpu_ms",
        limit=MOST_MS,
        unit="ms",
        is_upper=True,
    )
    return rounds.section(
        NAME,
        f"Commits of ranges over {rectangles:,} rectangles",
        CONDITIONS,
        (Column("cpu_ms", "CPU ms", digits=2, shows_rounds=True),),
        [target],
        chart=Chart("cpu_ms", "CPU of the broker for a commit, ms, median; points are rounds"),
    )


def _write(peer: Peer) -> None:
    """Write as many records as offsets are committed."""
    peer.create_topics({TOPIC: 1})
    peer.wait_for_leaders({TOPIC: 1})
    with Wire(peer.address) as wire:
        (answer,) = wire.ask(produce_request(TOPIC, 0, batch(RECORDS, 10)), PRODUCE_VERSION).responses
        assert not answer.partition_responses[0].error_code, answer


def _find_coordinators(wire: Wire) -> None:
    answer = wire.ask(FindCoordinatorRequest(key_type=0, coordinator_keys=(GROUP, "plain")), 4)
    assert not any(coordinator.error_code for coordinator in answer.coordinators), answer


def _commit(wire: Wire, ends: Sequence[int], chosen: Sequence[int]) -> None:
    """Commit that these hashes are done up to their ends; without hashes make a plain commit."""
    width = HASH_SPACE // len(ends)
    ranges = tuple(
        WireRectangle(
            first_offset=0,
            last_offset=ends[number] % RECORDS,
            first_hash=number * width,
            last_hash=number * width + width - 2,
        )
        for number in chosen
    )
    partition = OffsetCommitRequestPartition(
        partition_index=0, committed_offset=0, committed_metadata="", ranges=ranges
    )
    request = OffsetCommitRequest(
        group_id=GROUP if chosen else "plain",
        member_id="",
        topics=(OffsetCommitRequestTopic(name=TOPIC, partitions=(partition,)),),
    )
    ((answer,),) = (topic.partitions for topic in wire.ask(request, VERSION).topics)
    assert not answer.error_code, f"error {answer.error_code}"
