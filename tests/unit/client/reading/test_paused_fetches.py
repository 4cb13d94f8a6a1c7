"""A fetcher whose partition is paused during a fetch."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest

from tailrace.model.errors import ErrorCode
from tailrace.protocol.messages.fetch import PartitionData
from unit.client.reading.two_nodes import LEADER, PARTITION, REPLICA, TwoNodeRouter, data_of, fetcher_of, refusal, until


class PausedFetch:
    """A fetch that was sent, and whose partition was paused then; its answer waits for `land`."""

    def __init__(self, data: PartitionData) -> None:
        self._data = data
        self._asked, self._may_answer = asyncio.Event(), asyncio.Event()
        self.router = TwoNodeRouter(self._answer)
        self.fetcher = fetcher_of(self.router)

    async def _answer(self, node_id: int) -> PartitionData:
        self._asked.set()
        await self._may_answer.wait()
        return self._data

    async def send(self) -> None:
        self.fetcher.assign([PARTITION])
        self.fetcher.assigned.seek(PARTITION, 0)
        assert self.fetcher.take(10) == []
        await self._asked.wait()
        self.fetcher.assigned.pause([PARTITION])
        assert self.fetcher.take(10) == []

    async def land(self) -> None:
        self._may_answer.set()
        await until(self.fetcher, self.router, lambda: not self.fetcher._fetches)
        assert self.router.served == [LEADER]

    def resume(self) -> list[bytes | None]:
        """The records that are there without a fetch."""
        self.fetcher.assigned.resume([PARTITION])
        return [record.value for _, record in self.fetcher.take(10)]


@asynccontextmanager
async def paused_fetch(data: PartitionData | None = None) -> AsyncIterator[PausedFetch]:
    paused = PausedFetch(data or data_of(b"v", b"w"))
    await paused.send()
    yield paused
    await paused.fetcher.close()


async def test_a_fetcher_returns_an_answer_that_comes_after_a_pause_without_another_fetch() -> None:
    async with paused_fetch() as paused:
        await paused.land()
        assert paused.resume() == [b"v", b"w"]
        assert paused.router.served == [LEADER]
        assert paused.fetcher.bytes_consumed > 0


async def test_a_fetcher_returns_an_answer_that_comes_when_a_pause_is_over() -> None:
    async with paused_fetch() as paused:
        assert paused.resume() == []
        await paused.land()
        assert [record.value for _, record in paused.fetcher.take(10)] == [b"v", b"w"]


@pytest.mark.parametrize("code", [ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.KAFKA_STORAGE_ERROR])
async def test_a_fetcher_leaves_a_fault_that_comes_after_a_pause_to_the_next_fetch(code: ErrorCode) -> None:
    async with paused_fetch(refusal(code)) as paused:
        await paused.land()
        assert paused.fetcher.trouble is None
        paused.fetcher.assigned.resume([PARTITION])
        await until(paused.fetcher, paused.router, lambda: paused.fetcher.trouble is not None)


def _revoke(paused: PausedFetch) -> None:
    """And assign it again, at the same offset, which the leader has just named."""
    paused.fetcher.assign(())
    paused.fetcher.assign([PARTITION])
    assert paused.fetcher.assigned.start_at(PARTITION, 0, valid_under=0)
    paused.fetcher.assigned.pause([PARTITION])


def _seek(paused: PausedFetch) -> None:
    paused.fetcher.assigned.seek(PARTITION, 1)


def _move(paused: PausedFetch) -> None:
    """The cluster has no leader epochs that would tell."""
    paused.router.leaders[PARTITION] = REPLICA
    paused.router.describe()


def _elect_again(paused: PausedFetch) -> None:
    """The leader led in another epoch when it answered."""
    paused.router.epochs[PARTITION] = 2
    paused.router.describe()


def _depose(paused: PausedFetch) -> None:
    paused.router.leaders[PARTITION] = -1
    paused.router.describe()


@pytest.mark.parametrize("change", [_revoke, _seek, _move, _elect_again, _depose])
async def test_a_fetcher_drops_an_answer_that_comes_after_a_pause_and_is_for_another_position(
    change: Callable[[PausedFetch], None],
) -> None:
    async with paused_fetch() as paused:
        change(paused)
        await paused.land()
        partition = paused.fetcher.assigned.get(PARTITION)
        assert partition is not None
        assert partition.is_drained
        assert paused.resume() == []
