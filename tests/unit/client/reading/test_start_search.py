"""The position of a consumer when the log does not have its offset any more, and the warning about the move."""

import asyncio
import logging
from collections.abc import Callable, Mapping

import pytest

from tailrace.client.offsets import EARLIEST, LATEST, OffsetAt
from tailrace.client.reading.fetcher import Fetcher
from tailrace.client.reading.fetching import FetchOptions
from tailrace.client.reading.read_notices import Jump, ReadNotices
from tailrace.client.reading.searches import start_search
from tailrace.client.reading.searches.start_search import StartSearch
from tailrace.client.router import Router
from tailrace.client.settings import ClientSettings
from tailrace.model.errors import ErrorCode, KafkaError
from tailrace.model.partitions import TopicPartition

RNG = TopicPartition("rng", 0)

Take = Callable[[Mapping[TopicPartition, OffsetAt]], None]


class StartSearchBench:
    """A search in logs that all begin and end at the same offsets. The request for a bound of None fails."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, reset: int, bounds: tuple[int | None, int | None]) -> None:
        self.router = Router(ClientSettings("127.0.0.1:1"))
        options = FetchOptions(max_wait_ms=500, min_bytes=1, max_bytes=1_000, isolation_level=0, rack="")
        self.fetcher = Fetcher(self.router, options, max_partition_bytes=1_000)
        self.fetcher.assign([RNG])
        self.notices = ReadNotices("g", "tests", bootstrap_timeout_ms=10_000)
        self.bounds = dict(zip((EARLIEST, LATEST), bounds, strict=True))
        self.asked: list[int] = []
        self.on_ask: Callable[[], None] = lambda: None
        self.search = StartSearch(
            self.router, self.fetcher, group="g", reset=reset, isolation_level=0, notices=self.notices
        )
        monkeypatch.setattr(start_search, "request_offsets", self._ask)

    async def _ask(
        self, router: Router, specs: Mapping[TopicPartition, int], take: Take, *, isolation_level: int
    ) -> dict[TopicPartition, KafkaError]:
        self.asked += specs.values()
        self.on_ask()
        for partition, spec in specs.items():
            offset = self.bounds[spec]
            if offset is None:
                raise KafkaError(ErrorCode.NETWORK_EXCEPTION, "the leader is gone")
            take({partition: OffsetAt(offset, -1, 0)})
        return {}

    async def lose(self, offset: int) -> None:
        """The partition's leader has refused this offset as out of range; the search looks for another."""
        self.fetcher.assigned.seek(RNG, offset)
        self.fetcher.assigned.by_name[RNG].position.refused(-1, by_leader=True)
        self.fetcher.assigned.note(RNG)
        await self.advance()

    async def advance(self) -> None:
        self.search.advance()
        assert self.search._search._task is not None
        await asyncio.wait([self.search._search._task])


@pytest.fixture(autouse=True)
def heard(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger="tailrace.client")


def lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.name == "tailrace.client"]


@pytest.mark.parametrize(
    ("reset", "lost", "bounds", "position", "line"),
    [
        (LATEST, 100, (200, 1000), 1000, "is gone (log 200 to 1000); goes on at 1000 and skips 800 records"),
        (LATEST, 100, (999, 1000), 1000, "is gone (log 999 to 1000); goes on at 1000 and skips 1 record"),
        (LATEST, 900, (200, 1000), 1000, "is out of range (log 200 to 1000); goes on at 1000 and skips 100 records"),
        (EARLIEST, 100, (200, 1000), 200, "is gone (log 200 to 1000); goes on at 200: 100 records are removed unread"),
        (LATEST, 100, (200, 200), 200, "is gone (log 200 to 200); goes on at 200: 100 records are removed unread"),
        (EARLIEST, 199, (200, 1000), 200, "is gone (log 200 to 1000); goes on at 200: 1 record is removed unread"),
        (LATEST, 5000, (0, 1000), 1000, "is past the end (log 0 to 1000); goes on at 1000"),
        (EARLIEST, 5000, (0, 1000), 0, "is past the end (log 0 to 1000); goes on at 0"),
        (LATEST, 100, (None, 1000), 1000, "is out of range; goes on at 1000"),
    ],
)
async def test_a_consumer_names_an_offset_that_the_log_does_not_hold_with_what_is_not_read(
    reset: int,
    lost: int,
    bounds: tuple[int | None, int],
    position: int,
    line: str,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bench = StartSearchBench(monkeypatch, reset, bounds)
    bench.notices.report_skipped({RNG: 1}, has_offsets=False)  # the notice of a new topic is another matter
    caplog.clear()
    await bench.lose(lost)
    assert bench.fetcher.assigned.position(RNG) == position
    assert bench.search.trouble is None
    assert lines(caplog) == [f"group 'g': offset {lost} of rng-0 {line}"]
    assert caplog.records[0].levelno == logging.WARNING


async def test_a_cancelled_search_for_the_start_of_a_consumer_reports_its_decisions(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = StartSearchBench(monkeypatch, LATEST, (200, 1000))
    bench.on_ask = lambda: bench.search.cancel() if len(bench.asked) == 2 else None
    await bench.lose(100)
    await asyncio.sleep(0)
    assert len(lines(caplog)) == 1


async def test_a_partition_that_was_sought_while_a_consumer_looks_for_its_start_has_lost_nothing(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = StartSearchBench(monkeypatch, LATEST, (200, 1000))
    bench.on_ask = lambda: bench.fetcher.assigned.seek(RNG, 300)
    await bench.lose(100)
    assert bench.fetcher.assigned.position(RNG) == 300
    assert lines(caplog) == []


async def test_a_consumer_reports_a_log_that_outruns_it_at_once_and_every_30_seconds(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A broker that refuses every offset must not fill the log of its client."""
    now = [0]
    monkeypatch.setattr(Router, "now_ms", lambda _: now[0])
    bench = StartSearchBench(monkeypatch, EARLIEST, (0, 1000))
    for lost in range(0, 50, 10):
        bench.bounds[EARLIEST] = lost + 10
        await bench.lose(lost)
    bench.notices.check(None, 29_999, has_answered=True)
    assert len(lines(caplog)) == 1
    bench.notices.check(None, 30_000, has_answered=True)
    bench.notices.check(None, 90_000, has_answered=True)
    first, later = lines(caplog)
    assert first == (
        "group 'g': offset 0 of rng-0 is gone (log 10 to 1000); goes on at 10: 10 records are removed unread"
    )
    assert later == (
        "group 'g': offset 40 of rng-0 is gone (log 50 to 1000); goes on at 50: 10 records are removed unread; "
        "the last of 4 times"
    )


def test_a_consumer_without_a_group_reports_lost_offsets_too(caplog: pytest.LogCaptureFixture) -> None:
    alone = ReadNotices(None, "tests", bootstrap_timeout_ms=10_000)
    alone.report_jumps({RNG: Jump(100, 1000, 200, 1000)}, 0)
    assert lines(caplog)[0].startswith("consumer tests: offset 100 of rng-0 is gone")
