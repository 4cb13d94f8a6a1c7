"""franz-go's default producer with so many records that it fills requests of up to 100 MiB."""

import os
from collections.abc import Sequence
from contextlib import ExitStack
from typing import Final

from benchmarks.contests import DURABILITIES, FLUSHED, PAGE_CACHE, page_cache_and_flushed
from benchmarks.downloads import franz_go
from benchmarks.peers.kafka import KAFKA
from benchmarks.peers.peer import TAILRACE, NotReady, Peer, touch_pages
from benchmarks.results.figures import Chart, Column, Section, Target
from benchmarks.results.rounds import Rounds
from benchmarks.wire import Wire, end_offsets

NAME: Final = "large-requests"
RECORDS: Final = 9_000
RECORD_BYTES: Final = 10_000
PARTITIONS: Final = 40
_MEGABYTES: Final = RECORDS * RECORD_BYTES // 1_000_000

CONDITIONS: Final = (
    f"Client: franz-go {franz_go.VERSION} in its own process, with its default settings (idempotent, acks=all, "
    f"requests of up to 100 MiB). It gets {RECORDS:,} values of {RECORD_BYTES:,} B at once, not compressed, over the "
    f"{PARTITIONS} partitions of a new topic. The time runs to the last acknowledgement. A failed record, a request "
    f"without an answer, or a warning in the client's log ends the line. One node for each server. {PAGE_CACHE} "
    f"{FLUSHED}"
)


def measure(rounds: Rounds, _: int) -> Section:
    if why := franz_go.absent():
        raise NotReady(why)
    touch_pages(_MEGABYTES)
    with ExitStack() as stack:
        for durability, peers in page_cache_and_flushed(rounds, stack).items():
            for number in rounds:
                for peer in rounds.in_turn(peers):
                    _round(rounds, peer, f"large-{durability}-{number}", durability)
    columns = (
        Column("MB_per_s", "MB/s", beside=(KAFKA,), shows_rounds=True),
        Column("requests", "requests"),
        Column("largest_MB", "largest request, MB", digits=1),
    )
    targets = [Target(test=DURABILITIES[0], server=TAILRACE, quantity="MB_per_s", limit=1.0, beside=KAFKA)]
    return rounds.section(
        NAME,
        "Large requests with franz-go",
        CONDITIONS,
        columns,
        targets,
        chart=Chart("MB_per_s", "MB/s, median; points are rounds"),
    )


def _round(rounds: Rounds, peer: Peer, topic: str, durability: str) -> None:
    topics = {topic: PARTITIONS}
    peer.create_topics(topics)
    peer.wait_for_leaders(topics)
    # The previous peer's dirty pages are written back before this one begins, which would pay for them otherwise.
    os.sync()
    done = franz_go.produce(peer.address, topic, partitions=PARTITIONS, records=RECORDS, size=RECORD_BYTES)
    _check(peer, topic, done)
    (produced,) = done
    rounds.record(
        durability,
        peer.name,
        MB_per_s=_MEGABYTES / produced.seconds,
        requests=produced.requests,
        largest_MB=produced.largest_bytes / 1e6,
    )
    peer.delete_topics(topics)


def _check(peer: Peer, topic: str, done: Sequence[franz_go.Produced]) -> None:
    with Wire(peer.address) as wire:
        found = sum(end_offsets(wire, topic, PARTITIONS))
    if found != RECORDS or any(produced.is_troubled for produced in done):
        raise NotReady(f"{peer.name} has {found} of {RECORDS} records: {done}")
