"""The answers that a fetcher uses, and the node of the next fetch. The nodes here are scripted."""

import asyncio
import gc
import warnings
import weakref
from collections.abc import Callable
from typing import Any

import pytest

from tailrace.client.reading import assigned_partitions, replica_leases
from tailrace.client.reading.consumed_partition import ConsumedPartition
from tailrace.client.reading.fetcher import Fetcher
from tailrace.model.errors import ErrorCode, KafkaError
from tailrace.model.partitions import TopicPartition
from tailrace.net import silence
from tailrace.protocol.messages.fetch import FetchableTopicResponse, FetchResponse, PartitionData
from testkit.clients.scripted_nodes import TOPIC_ID, ScriptedNodes
from unit.client.reading.two_nodes import (
    LEADER,
    PARTITION,
    REPLICA,
    TwoNodeRouter,
    data_of,
    fetcher_of,
    refusal,
    until,
    values_of,
)


async def test_a_fetcher_asks_the_leader_again_when_the_replica_that_it_named_cannot_be_reached() -> None:
    async def answer(node_id: int) -> PartitionData:
        if node_id == REPLICA:
            raise KafkaError(ErrorCode.NETWORK_EXCEPTION, "the replica is gone")
        return data_of(b"v") if REPLICA in router.served else data_of(replica=REPLICA)

    router = TwoNodeRouter(answer)
    fetcher = fetcher_of(router)
    assert await values_of(fetcher, router) == [b"v"]
    assert router.served[:3] == [LEADER, REPLICA, LEADER]
    await fetcher.close()


async def test_an_answer_to_a_fetcher_of_an_earlier_assignment_does_not_decide_where_this_assignment_begins() -> None:
    """Both partitions have offset 0: the old one as its position, the new one because no position is decided yet."""
    asked, may_answer = asyncio.Event(), asyncio.Event()

    async def answer(node_id: int) -> PartitionData:
        asked.set()
        await may_answer.wait()
        return data_of(b"v")

    router = TwoNodeRouter(answer)
    fetcher = fetcher_of(router)
    assert fetcher.take(10) == []
    await asked.wait()
    fetcher.assign(())
    fetcher.assign([PARTITION])
    may_answer.set()
    await fetcher.wait(router.now_ms() + 10_000)
    assert fetcher.take(10) == []
    assert list(fetcher.assigned.undecided()) == [PARTITION]
    await fetcher.close()


def test_a_close_of_a_fetcher_before_the_first_step_of_a_fetch_leaves_no_coroutine_behind() -> None:
    async def run() -> None:
        async def answer(node_id: int) -> PartitionData:
            return data_of(b"v")

        router = TwoNodeRouter(answer)
        fetcher = fetcher_of(router)
        assert fetcher.take(10) == []
        await fetcher.close()
        assert router.served == []

    gc.collect()  # what other tests have left behind is not this test's
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        asyncio.run(run())
        gc.collect()
    assert [text for text in (str(warning.message) for warning in caught) if "never awaited" in text] == []


async def test_a_fetcher_raises_a_bug_in_a_fetch_to_the_reader() -> None:
    async def answer(node_id: int) -> PartitionData:
        raise ZeroDivisionError("a mistake")

    router = TwoNodeRouter(answer)
    fetcher = fetcher_of(router)
    with pytest.raises(KafkaError, match="a mistake") as caught:
        await values_of(fetcher, router)
    assert caught.value.code is ErrorCode.UNKNOWN_SERVER_ERROR
    await fetcher.close()


async def test_a_partition_that_leaves_a_fetcher_is_not_kept_by_its_lease_and_has_no_records(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The partition's unread batches are views of a whole answer, up to fetch.max.bytes."""

    class Traced(ConsumedPartition):
        __slots__ = ("__weakref__",)

    monkeypatch.setattr(assigned_partitions, "ConsumedPartition", Traced)

    async def answer(node_id: int) -> PartitionData:
        return data_of(b"v", b"w") if node_id == REPLICA else data_of(replica=REPLICA)

    router = TwoNodeRouter(answer)
    fetcher = fetcher_of(router)
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


@pytest.mark.parametrize(
    "leave",
    [
        lambda fetcher: fetcher.assigned.pause([PARTITION]),
        lambda fetcher: fetcher.assign(()),
    ],
    ids=["paused", "not assigned"],
)
async def test_the_trouble_of_a_fetcher_ends_when_its_partition_is_not_fetched_any_more(
    leave: Callable[[Fetcher], None],
) -> None:
    async def answer(node_id: int) -> PartitionData:
        return refusal(ErrorCode.NOT_LEADER_OR_FOLLOWER)

    router = TwoNodeRouter(answer)
    fetcher = fetcher_of(router)
    await until(fetcher, router, lambda: fetcher.trouble is not None)
    leave(fetcher)
    await until(fetcher, router, lambda: fetcher.trouble is None and not fetcher._fetches)
    assert fetcher.trouble is None
    await fetcher.close()


async def test_the_trouble_of_a_fetcher_of_a_partition_without_a_leader_lasts_until_a_pause() -> None:
    async def answer(node_id: int) -> PartitionData:
        raise AssertionError("there is no leader to ask")

    router = TwoNodeRouter(answer)
    router.leaders[PARTITION] = -1
    router.describe()
    fetcher = fetcher_of(router)
    await until(fetcher, router, lambda: fetcher.trouble is not None)
    refreshes = router.metadata_requests
    await until(fetcher, router, lambda: router.metadata_requests > refreshes + 3)
    assert fetcher.trouble is not None
    fetcher.assigned.pause([PARTITION])
    refreshes = router.metadata_requests
    await until(fetcher, router, lambda: router.metadata_requests > refreshes + 3)
    assert fetcher.trouble is None
    fetcher.assigned.resume([PARTITION])
    assert fetcher.take(10) == []
    assert fetcher.trouble is not None
    await fetcher.close()


async def test_the_trouble_of_a_fetcher_names_a_leader_that_hangs_while_another_node_serves(impatient: None) -> None:
    other = TopicPartition("orders", 1)
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
    fetcher = fetcher_of(router, max_wait_ms=0)
    fetcher.assign([PARTITION, other])
    fetcher.assigned.seek(other, 0)
    await until(fetcher, router, lambda: fetcher.trouble is not None)
    before = served
    await until(fetcher, router, lambda: served > before + 5)
    assert fetcher.trouble is not None
    assert fetcher.trouble.code is ErrorCode.REQUEST_TIMED_OUT
    assert "node 1 has not answered a fetch" in fetcher.trouble.detail
    await fetcher.close()


async def test_a_fetch_that_fails_after_the_last_partition_has_left_the_fetcher_is_no_trouble() -> None:
    asked, may_fail = asyncio.Event(), asyncio.Event()

    async def answer(node_id: int) -> PartitionData:
        asked.set()
        await may_fail.wait()
        raise KafkaError(ErrorCode.NETWORK_EXCEPTION, "the node is gone")

    router = TwoNodeRouter(answer)
    fetcher = fetcher_of(router)
    assert fetcher.take(10) == []
    await asked.wait()
    fetcher.assign(())
    may_fail.set()
    await until(fetcher, router, lambda: not fetcher._fetches)
    assert fetcher.trouble is None
    await fetcher.close()


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two seconds pass in a moment."""
    monkeypatch.setattr(silence, "SILENCE_MS", 20)


async def test_a_fetcher_leaves_a_replica_that_hangs_and_does_not_count_its_late_answer(
    impatient: None, caplog: pytest.LogCaptureFixture
) -> None:
    may_answer = asyncio.Event()

    async def answer(node_id: int) -> PartitionData:
        if node_id == REPLICA:
            await may_answer.wait()
            return data_of(b"late")
        return data_of(b"v") if REPLICA in router.served else data_of(replica=REPLICA)

    router = TwoNodeRouter(answer)
    fetcher = fetcher_of(router, max_wait_ms=0)
    taken = await values_of(fetcher, router)
    assert taken == [b"v"]
    assert router.metadata_requests
    assert any("node 2 has not answered a fetch" in record.getMessage() for record in caplog.records)
    may_answer.set()
    for _ in range(20):
        await asyncio.sleep(0)
    assert b"late" not in [record.value for _, record in fetcher.take(10)]
    assert fetcher.trouble is None
    await fetcher.close()


@pytest.mark.parametrize("is_in_sync", [True, False])
async def test_a_fetcher_leaves_a_replica_with_nothing_new_if_it_is_not_in_sync(is_in_sync: bool) -> None:
    async def answer(node_id: int) -> PartitionData:
        if node_id == REPLICA:
            await asyncio.sleep(0.001)
            return data_of()
        return data_of(b"v") if REPLICA in router.served else data_of(replica=REPLICA)

    router = TwoNodeRouter(answer)
    fetcher = fetcher_of(router)
    await until(fetcher, router, lambda: REPLICA in router.served)
    router.in_sync = [LEADER, REPLICA] if is_in_sync else [LEADER]
    asked = router.metadata_requests
    fetcher._leases.served = lambda *_: None  # type: ignore[method-assign] # a real answer names no partition
    router.passed_ms += replica_leases.STILL_MS
    if is_in_sync:
        await until(fetcher, router, lambda: router.metadata_requests > asked)
        fetches = len(router.served)
        await until(fetcher, router, lambda: len(router.served) > fetches + 5)
        assert router.served[-1] == REPLICA
    else:
        assert await values_of(fetcher, router) == [b"v"]
        assert router.metadata_requests > asked
    await fetcher.close()
