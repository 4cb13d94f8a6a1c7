"""The last commit of a keyed consumer before its partitions leave covers what is done: a stop repeats nothing."""

import asyncio
import random
from collections import defaultdict
from collections.abc import Mapping
from typing import Any
from uuid import uuid4

import pytest

from tailrace import Admin, Done, KeyedRecord, Outcome, Producer, Retry
from tailrace.client.keyed.keyed_consumer import AsyncKeyedConsumer
from tailrace.client.reader_settings import GroupProtocol
from tailrace.testing import Cluster
from unit.client.keyed.keyed_runs import consumer_of, on_engine


def write_keys(cluster: Cluster, topic: str, *, records: int, keys: int) -> dict[bytes, int]:
    """Records of keys by lot in one partition. Values count the records of a key. Returns the counts."""
    with Admin(cluster.bootstrap_servers) as admin:
        admin.create_topics({topic: 1})
    counts: dict[bytes, int] = defaultdict(int)
    with Producer(cluster.bootstrap_servers) as producer:
        for _ in range(records):
            key = b"%d" % random.randrange(keys)
            producer.send(topic, b"%d" % counts[key], key=key)
            counts[key] += 1
    return counts


async def test_stops_and_starts_of_a_keyed_consumer_repeat_nothing(
    tailrace_cluster: Cluster, group_protocol: GroupProtocol
) -> None:
    """Three keys of ten fail until the last life: more keys are held than a periodic commit has holes, and the last
    commit of a life has more rectangles than a request may have."""
    name, records, lives = f"topic-{uuid4()}", 4_000, 5
    counts = write_keys(tailrace_cluster, name, records=records, keys=2_000)
    done: dict[tuple[int, int], int] = defaultdict(int)
    in_order: dict[bytes, list[int]] = defaultdict(list)

    async def live(most: int) -> None:
        consumer = AsyncKeyedConsumer(
            tailrace_cluster.bootstrap_servers,
            group=name,
            topics=[name],
            group_protocol=group_protocol,
            breaker_failure_percent=None,
        )
        is_last = most == records

        async def handle(record: KeyedRecord) -> Outcome:
            assert record.key is not None
            if int(record.key) % 10 < 3 and not is_last:
                return Retry()
            done[record.partition, record.offset] += 1
            in_order[record.key].append(int(record.value))
            if len(done) == most:
                consumer.stop()
            return Done()

        await consumer.run(handle)

    for life in range(lives):
        await live(400 * (life + 1))
    await live(records)
    assert len(done) == records
    assert [place for place, times in done.items() if times > 1] == []
    assert dict(in_order) == {key: list(range(count)) for key, count in counts.items()}


async def test_the_end_of_a_run_of_a_keyed_consumer_waits_and_commits_once(
    tailrace_cluster: Cluster,
    topic: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    group_protocol: GroupProtocol,
) -> None:
    """A handler that hangs costs its grace once. With KIP-848 the other partitions do not wait for it."""
    consumer = consumer_of(tailrace_cluster, topic, group_protocol=group_protocol, grace_ms=50)
    write, last_commits, is_stopped = consumer._engine._store.write, 0, False

    async def counted(commits: Mapping[Any, Any]) -> Any:
        nonlocal last_commits
        last_commits += is_stopped
        return await write(commits)

    monkeypatch.setattr(consumer._engine._store, "write", counted)

    async def handle(record: KeyedRecord) -> None:
        nonlocal is_stopped
        is_stopped = True
        consumer.stop()
        await asyncio.Event().wait()

    await consumer.run(handle, concurrency=1)
    graces = [line for line in caplog.messages if "that the handler has not finished in time" in line]
    assert len(graces) == 1
    # With KIP-848 idle partitions leave first, with a commit if their progress is known already.
    assert 1 <= last_commits <= (2 if group_protocol == "consumer" else 1)


async def test_a_partition_that_leaves_is_committed_by_its_release_alone(
    tailrace_cluster: Cluster, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Any other commit may come behind the heartbeat that gives the partition up."""
    consumer = consumer_of(tailrace_cluster, topic, auto_commit_interval_ms=600_000)
    engine, began, go_on = consumer._engine, asyncio.Event(), asyncio.Event()
    committed: list[set[Any]] = []
    write = engine._store.write

    async def noted(commits: Mapping[Any, Any]) -> Any:
        committed.append(set(commits))
        return await write(commits)

    async def handle(record: KeyedRecord) -> None:
        began.set()
        await go_on.wait()

    run = asyncio.create_task(consumer.run(handle, concurrency=1))
    await began.wait()
    monkeypatch.setattr(engine._store, "write", noted)
    (work,) = engine._work.queue.works
    name = work.name

    async def commit_while_it_leaves() -> None:
        engine._begin_leaving(frozenset({name}))
        await engine._commit()

    await on_engine(commit_while_it_leaves())
    assert all(name not in names for names in committed)
    consumer.stop()
    go_on.set()
    await run
    assert any(name in names for names in committed), "by the last commit"
