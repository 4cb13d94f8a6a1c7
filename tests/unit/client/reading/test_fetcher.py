"""The answers that a fetcher uses, and the node of the next fetch. The nodes here are scripted."""

import asyncio
import gc
import warnings
import weakref
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from tailrace.client.reading import assigned_partitions, replica_leases
from tailrace.client.reading.consumed_partition import ConsumedPartition
from tailrace.client.reading.fetcher import Fetcher
from tailrace.client.reading.fetching import FetchOptions
from tailrace.client.router import Router
from tailrace.model.errors import ErrorCode, KafkaError
from tailrace.model.partitions import TopicPartition
from tailrace.net import silence
from tailrace.protocol.messages.fetch import FetchableTopicResponse, FetchResponse, PartitionData
from tailrace.protocol.records.record import Record, build_batch
from testkit.clients.scripted_nodes import TOPIC_ID, ScriptedNodes

PARTITION = TopicPartition("orders", 0)
LEADER, REPLICA = 1, 2

Answer = Callable[[int], Awaitable[PartitionData]]
"""The answer of the node with this number."""


class TwoNodeRouter(ScriptedNodes):
    """A partition that node 1 leads; a script answers its fetches."""

    def __init__(self, answer: Answer) -> None:
        async def respond(node_id: int, request: Any) -> FetchResponse:
            data = await answer(node_id)
            return FetchResponse(responses=(FetchableTopicResponse(topic_id=TOPIC_ID, partitions=(data,)),))

        super().__init__(respond, {PARTITION: LEADER})

    @property
    def served(self) -> list[int]:
        """The nodes that were asked, in order."""
        return [node for node, _ in self.asked]


def _data(*values: bytes, replica: int = -1) -> PartitionData:
    records = bytes(build_batch([Record(0, 1, None, value) for value in values])) if values else None
    return PartitionData(
        partition_index=0,
        high_watermark=9,
        aborted_transactions=None,
        preferred_read_replica=replica,
        records=records,
    )


def _fetcher(router: Router, *, max_wait_ms: int = 500) -> Fetcher:
    """A fetcher of the partition, from its start on."""
    fetcher = Fetcher(
        router,
        FetchOptions(max_wait_ms=max_wait_ms, min_bytes=1, max_bytes=1_000_000, isolation_level=0, rack="a"),
        max_partition_bytes=1_000_000,
    )
    fetcher.assign([PARTITION])
    fetcher.assigned.seek(PARTITION, 0)
    return fetcher


def _refusal(code: ErrorCode) -> PartitionData:
    return PartitionData(partition_index=0, error_code=code, high_watermark=9, aborted_transactions=None, records=None)


async def _until(fetcher: Fetcher, router: Router, holds: Callable[[], bool]) -> None:
    """Poll until this holds; there are no records."""
    async with asyncio.timeout(20):
        while not holds():
            assert fetcher.take(10) == []
            await fetcher.wait(router.now_ms() + 5)


async def _values(fetcher: Fetcher, router: Router) -> list[bytes | None]:
    """Records that come within some seconds."""
    deadline_ms = router.now_ms() + 10_000
    while router.now_ms() < deadline_ms:
        taken = fetcher.take(10)
        if taken:
            return [record.value for _, record in taken]
        await fetcher.wait(deadline_ms)
    return []


def test_the_leader_serves_again_when_the_replica_that_it_named_cannot_be_reached() -> None:
    async def run() -> None:
        async def answer(node_id: int) -> PartitionData:
            if node_id == REPLICA:
                raise KafkaError(ErrorCode.NETWORK_EXCEPTION, "the replica is gone")
            return _data(b"v") if REPLICA in router.served else _data(replica=REPLICA)

        router = TwoNodeRouter(answer)
        fetcher = _fetcher(router)
        assert await _values(fetcher, router) == [b"v"]
        assert router.served[:3] == [LEADER, REPLICA, LEADER]
        await fetcher.close()

    asyncio.run(run())


def test_an_answer_of_an_earlier_assignment_does_not_decide_where_this_one_begins() -> None:
    """Both partitions have offset 0: the old one as its position, the new one because no position is decided yet."""

    async def run() -> None:
        asked, may_answer = asyncio.Event(), asyncio.Event()

        async def answer(node_id: int) -> PartitionData:
            asked.set()
            await may_answer.wait()
            return _data(b"v")

        router = TwoNodeRouter(answer)
        fetcher = _fetcher(router)
        assert fetcher.take(10) == []
        await asked.wait()
        fetcher.assign(())
        fetcher.assign([PARTITION])
        may_answer.set()
        await fetcher.wait(router.now_ms() + 10_000)
        assert fetcher.take(10) == []
        assert list(fetcher.assigned.undecided()) == [PARTITION]
        await fetcher.close()

    asyncio.run(run())


def test_a_close_before_the_first_step_of_a_fetch_leaves_no_coroutine_behind() -> None:
    async def run() -> None:
        async def answer(node_id: int) -> PartitionData:
            return _data(b"v")

        router = TwoNodeRouter(answer)
        fetcher = _fetcher(router)
        assert fetcher.take(10) == []
        await fetcher.close()
        assert router.served == []

    gc.collect()  # what other tests have left behind is not this test's
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        asyncio.run(run())
        gc.collect()
    assert [text for text in (str(warning.message) for warning in caught) if "never awaited" in text] == []


def test_a_bug_in_a_fetch_is_raised_to_the_reader() -> None:
    async def run() -> None:
        async def answer(node_id: int) -> PartitionData:
            raise ZeroDivisionError("a mistake")

        router = TwoNodeRouter(answer)
        fetcher = _fetcher(router)
        with pytest.raises(KafkaError, match="a mistake") as caught:
            await _values(fetcher, router)
        assert caught.value.code is ErrorCode.UNKNOWN_SERVER_ERROR
        await fetcher.close()

    asyncio.run(run())


def test_a_partition_that_leaves_is_not_kept_by_its_lease_and_has_no_records(monkeypatch: pytest.MonkeyPatch) -> None:
    """The partition's unread batches are views of a whole answer, up to fetch.max.bytes."""

    class Traced(ConsumedPartition):
        __slots__ = ("__weakref__",)

    monkeypatch.setattr(assigned_partitions, "ConsumedPartition", Traced)

    async def run() -> None:
        async def answer(node_id: int) -> PartitionData:
            return _data(b"v", b"w") if node_id == REPLICA else _data(replica=REPLICA)

        router = TwoNodeRouter(answer)
        fetcher = _fetcher(router)
        while not fetcher.assigned.has_ready:
            assert fetcher.take(0) == []
            await fetcher.wait(router.now_ms() + 10_000)
        partition = fetcher.assigned.get(PARTITION)
        assert partition is not None
        assert (partition.replica, partition.is_drained) == (REPLICA, False)
        fetcher.assign(())
        assert partition.is_drained
        traced = weakref.ref(partition)
        del partition
        gc.collect()
        assert traced() is None
        await fetcher.close()

    asyncio.run(run())


@pytest.mark.parametrize(
    "leave",
    [
        lambda fetcher: fetcher.assigned.pause([PARTITION]),
        lambda fetcher: fetcher.assign(()),
    ],
    ids=["paused", "not assigned"],
)
def test_the_trouble_of_a_partition_ends_when_it_is_not_fetched_any_more(leave: Callable[[Fetcher], None]) -> None:
    async def run() -> None:
        async def answer(node_id: int) -> PartitionData:
            return _refusal(ErrorCode.NOT_LEADER_OR_FOLLOWER)

        router = TwoNodeRouter(answer)
        fetcher = _fetcher(router)
        await _until(fetcher, router, lambda: fetcher.trouble is not None)
        leave(fetcher)
        await _until(fetcher, router, lambda: fetcher.trouble is None and not fetcher._fetches)
        assert fetcher.trouble is None
        await fetcher.close()

    asyncio.run(run())


def test_the_trouble_of_a_partition_without_a_leader_lasts_until_it_is_paused() -> None:
    async def run() -> None:
        async def answer(node_id: int) -> PartitionData:
            raise AssertionError("there is no leader to ask")

        router = TwoNodeRouter(answer)
        router.leaders[PARTITION] = -1
        router.describe()
        fetcher = _fetcher(router)
        await _until(fetcher, router, lambda: fetcher.trouble is not None)
        refreshes = router.metadata_requests
        await _until(fetcher, router, lambda: router.metadata_requests > refreshes + 3)
        assert fetcher.trouble is not None
        fetcher.assigned.pause([PARTITION])
        refreshes = router.metadata_requests
        await _until(fetcher, router, lambda: router.metadata_requests > refreshes + 3)
        assert fetcher.trouble is None
        fetcher.assigned.resume([PARTITION])
        assert fetcher.take(10) == []
        assert fetcher.trouble is not None
        await fetcher.close()

    asyncio.run(run())


def test_a_fetch_that_fails_after_the_last_partition_has_left_is_no_trouble() -> None:
    async def run() -> None:
        asked, may_fail = asyncio.Event(), asyncio.Event()

        async def answer(node_id: int) -> PartitionData:
            asked.set()
            await may_fail.wait()
            raise KafkaError(ErrorCode.NETWORK_EXCEPTION, "the node is gone")

        router = TwoNodeRouter(answer)
        fetcher = _fetcher(router)
        assert fetcher.take(10) == []
        await asked.wait()
        fetcher.assign(())
        may_fail.set()
        await _until(fetcher, router, lambda: not fetcher._fetches)
        assert fetcher.trouble is None
        await fetcher.close()

    asyncio.run(run())


# a pause during a fetch


class PausedFetch:
    """A fetch that was sent, and whose partition was paused then; its answer waits for `land`."""

    def __init__(self, data: PartitionData) -> None:
        self._data = data
        self._asked, self._may_answer = asyncio.Event(), asyncio.Event()
        self.router = TwoNodeRouter(self._answer)
        self.fetcher = _fetcher(self.router)

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
        await _until(self.fetcher, self.router, lambda: not self.fetcher._fetches)
        assert self.router.served == [LEADER]

    def resume(self) -> list[bytes | None]:
        """The records that are there without a fetch."""
        self.fetcher.assigned.resume([PARTITION])
        return [record.value for _, record in self.fetcher.take(10)]


def _run_paused_fetch(test: Callable[[PausedFetch], Awaitable[None]], data: PartitionData | None = None) -> None:
    async def run() -> None:
        paused = PausedFetch(data or _data(b"v", b"w"))
        await paused.send()
        await test(paused)
        await paused.fetcher.close()

    asyncio.run(run())


def test_an_answer_that_comes_after_a_pause_is_returned_after_it_without_another_fetch() -> None:
    async def test(paused: PausedFetch) -> None:
        await paused.land()
        assert paused.resume() == [b"v", b"w"]
        assert paused.router.served == [LEADER]
        assert paused.fetcher.bytes_consumed > 0

    _run_paused_fetch(test)


def test_an_answer_that_comes_when_a_pause_is_over_is_returned_too() -> None:
    async def test(paused: PausedFetch) -> None:
        assert paused.resume() == []
        await paused.land()
        assert [record.value for _, record in paused.fetcher.take(10)] == [b"v", b"w"]

    _run_paused_fetch(test)


def test_a_fault_that_comes_after_a_pause_is_left_to_the_next_fetch() -> None:
    async def test(paused: PausedFetch) -> None:
        await paused.land()
        assert paused.fetcher.trouble is None
        paused.fetcher.assigned.resume([PARTITION])
        await _until(paused.fetcher, paused.router, lambda: paused.fetcher.trouble is not None)

    for code in (ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.KAFKA_STORAGE_ERROR):
        _run_paused_fetch(test, _refusal(code))


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
def test_an_answer_that_comes_after_a_pause_is_dropped_when_it_is_not_the_one_for_this_position(
    change: Callable[[PausedFetch], None],
) -> None:
    async def test(paused: PausedFetch) -> None:
        change(paused)
        await paused.land()
        partition = paused.fetcher.assigned.get(PARTITION)
        assert partition is not None
        assert partition.is_drained
        assert paused.resume() == []

    _run_paused_fetch(test)


# nodes that hang, and followers that are cut off


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two seconds pass in a moment."""
    monkeypatch.setattr(silence, "SILENCE_MS", 20)


def test_a_replica_that_hangs_is_left_and_its_late_answer_does_not_count(
    impatient: None, caplog: pytest.LogCaptureFixture
) -> None:
    async def run() -> None:
        may_answer = asyncio.Event()

        async def answer(node_id: int) -> PartitionData:
            if node_id == REPLICA:
                await may_answer.wait()
                return _data(b"late")
            return _data(b"v") if REPLICA in router.served else _data(replica=REPLICA)

        router = TwoNodeRouter(answer)
        fetcher = _fetcher(router, max_wait_ms=0)
        taken = await _values(fetcher, router)
        assert taken == [b"v"]
        assert router.metadata_requests
        assert any("node 2 has not answered a fetch" in record.getMessage() for record in caplog.records)
        may_answer.set()
        for _ in range(20):
            await asyncio.sleep(0)
        assert b"late" not in [record.value for _, record in fetcher.take(10)]
        assert fetcher.trouble is None
        await fetcher.close()

    asyncio.run(run())


def test_the_trouble_names_a_leader_that_hangs_while_another_node_serves(impatient: None) -> None:
    other = TopicPartition("orders", 1)

    async def run() -> None:
        served = 0

        async def respond(node_id: int, request: Any) -> FetchResponse:
            nonlocal served
            if node_id == LEADER:
                await asyncio.Event().wait()
            served += 1
            await asyncio.sleep(0.001)
            data = PartitionData(partition_index=1, high_watermark=0, aborted_transactions=None, records=None)
            return FetchResponse(responses=(FetchableTopicResponse(topic_id=TOPIC_ID, partitions=(data,)),))

        router = ScriptedNodes(respond, {PARTITION: LEADER, other: REPLICA})
        fetcher = _fetcher(router, max_wait_ms=0)
        fetcher.assign([PARTITION, other])
        fetcher.assigned.seek(other, 0)
        await _until(fetcher, router, lambda: fetcher.trouble is not None)
        before = served
        await _until(fetcher, router, lambda: served > before + 5)
        assert fetcher.trouble is not None
        assert fetcher.trouble.code is ErrorCode.REQUEST_TIMED_OUT
        assert "node 1 has not answered a fetch" in fetcher.trouble.detail
        await fetcher.close()

    asyncio.run(run())


@pytest.mark.parametrize("is_in_sync", [True, False])
def test_a_replica_with_nothing_new_is_left_if_it_is_not_in_sync(is_in_sync: bool) -> None:
    async def run() -> None:
        async def answer(node_id: int) -> PartitionData:
            if node_id == REPLICA:
                await asyncio.sleep(0.001)
                return _data()
            return _data(b"v") if REPLICA in router.served else _data(replica=REPLICA)

        router = TwoNodeRouter(answer)
        fetcher = _fetcher(router)
        await _until(fetcher, router, lambda: REPLICA in router.served)
        router.in_sync = [LEADER, REPLICA] if is_in_sync else [LEADER]
        asked = router.metadata_requests
        fetcher._leases.served = lambda *_: None  # type: ignore[method-assign] # a real answer names no partition
        router.passed_ms += replica_leases.STILL_MS
        if is_in_sync:
            await _until(fetcher, router, lambda: router.metadata_requests > asked)
            fetches = len(router.served)
            await _until(fetcher, router, lambda: len(router.served) > fetches + 5)
            assert router.served[-1] == REPLICA
        else:
            assert await _values(fetcher, router) == [b"v"]
            assert router.metadata_requests > asked
        await fetcher.close()

    asyncio.run(run())
