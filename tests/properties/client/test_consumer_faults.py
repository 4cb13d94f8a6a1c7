"""A consumer returns every record once and in order, whatever happens to its sessions, its replicas and its leader.

The nodes are scripted and share one history; the follower may lag behind. No record is ever deleted or truncated, so a
reset would be a mistake: it shows as a gap, as a repetition, or, without a reset policy, as an error.
"""

import asyncio
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from budgets import examples
from tailrace.model.errors import ErrorCode, KafkaError
from tailrace.model.partitions import TopicPartition
from tailrace.protocol.messages.fetch import FetchRequest, FetchResponse
from testkit.clients.scripted_consumer import ConsumerBench

PARTITIONS = [TopicPartition("orders", number) for number in range(3)]
SESSION_FAULTS = [
    ErrorCode.FETCH_SESSION_ID_NOT_FOUND,
    ErrorCode.INVALID_FETCH_SESSION_EPOCH,
    ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR,
]
PASSING_FAULTS = [
    ErrorCode.OFFSET_NOT_AVAILABLE,
    ErrorCode.UNKNOWN_LEADER_EPOCH,
    ErrorCode.FENCED_LEADER_EPOCH,
    ErrorCode.NOT_LEADER_OR_FOLLOWER,
    ErrorCode.UNKNOWN_TOPIC_ID,
    ErrorCode.KAFKA_STORAGE_ERROR,
]

partitions = st.sampled_from(PARTITIONS)
nodes = st.sampled_from([1, 2])
reading = st.one_of(
    st.tuples(st.just("append"), st.integers(1, 3)),
    st.tuples(st.just("poll"), st.integers(1, 5)),
    st.tuples(st.just("poll"), st.integers(1, 5)),
)
events = st.one_of(
    st.tuples(st.just("pause"), partitions),
    st.tuples(st.just("resume"), partitions),
    st.tuples(st.just("seek away and back"), partitions),
    st.tuples(st.just("refuse the session"), st.tuples(nodes, st.sampled_from(SESSION_FAULTS))),
    st.tuples(st.just("refuse a fetch"), st.tuples(nodes, st.sampled_from(PASSING_FAULTS))),
    st.tuples(st.just("cut the connection"), nodes),
    st.tuples(st.just("lag"), st.integers(0, 4)),
    st.tuples(st.just("name the follower"), st.booleans()),
    st.tuples(st.just("elect"), nodes),
    st.tuples(st.just("keep sessions"), st.booleans()),
    st.tuples(st.just("let time pass"), st.sampled_from([1_000, 70_000, 400_000])),
)
actions = st.one_of(reading, events)


_ANSWER_TURNS = 4
"""Turns of the event loop that an answer takes: a seek may come between a fetch and its answer."""


class FaultyCluster:
    """A consumer, its nodes, and the records that it has returned."""

    def __init__(self, reset: str, *, gives_bounds: bool, is_named: bool) -> None:
        self.bench = ConsumerBench(PARTITIONS, client_rack="a", auto_offset_reset=reset)
        self.history = [0]
        self.lag = 0
        self.leader, self.epoch = 1, 0
        self.follower_is_named = is_named
        self.refusals: list[tuple[int, ErrorCode | None]] = []
        """(node, error of the session): the next fetch there; without an error the connection breaks."""
        self.returned: dict[int, list[int]] = {partition.partition: [] for partition in PARTITIONS}
        for number, replica in self.bench.replicas.items():
            replica.gives_bounds = gives_bounds
            replica.batch_records = 3
            replica.session_id = 40 + number
            replica.answer = self._answering(number, replica.answer)  # type: ignore[method-assign]
        self.spread()

    def _answering(self, number: int, answer: Any) -> Any:
        async def wrapped(request: Any) -> Any:
            for _ in range(_ANSWER_TURNS):
                await asyncio.sleep(0)
            due = next((refusal for refusal in self.refusals if refusal[0] == number), None)
            if isinstance(request, FetchRequest) and due is not None:
                self.refusals.remove(due)
                if due[1] is None:
                    raise KafkaError(ErrorCode.NETWORK_EXCEPTION, "reset")
                if request.session_epoch > 0:
                    return FetchResponse(error_code=due[1], responses=())
            return await answer(request)

        return wrapped

    def spread(self) -> None:
        """Bring the replicas to where they are to be: the leader has every record, the follower lags."""
        for number, replica in self.bench.replicas.items():
            is_leader = number == self.leader
            end = len(self.history) if is_leader else max(0, len(self.history) - self.lag)
            replica.epochs = self.history[:end]
            replica.preferred = 3 - self.leader if is_leader and self.follower_is_named else -1

    async def act(self, action: str, value: Any) -> None:
        consumer = self.bench.consumer
        match action:
            case "append":
                self.history += [self.epoch] * value
            case "poll":
                for _ in range(value):
                    await self.poll(value)
            case "pause":
                await consumer.pause([value])
            case "resume":
                await consumer.resume([value])
            case "seek away and back":
                position = consumer._positions()[value]
                await consumer.seek(value, 0)
                consumer._reader.fetcher.take(0)
                for _ in range(_ANSWER_TURNS - 1):
                    await asyncio.sleep(0)
                await consumer.seek(value, position)
                consumer._reader.fetcher.take(0)
            case _:
                self.disturb(action, value)
        self.spread()

    def disturb(self, action: str, value: Any) -> None:
        """Let this happen to the cluster."""
        replicas = self.bench.replicas
        match action:
            case "refuse the session":
                self.refusals.append(value)
            case "refuse a fetch":
                replicas[value[0]].faults.append(value[1])
            case "cut the connection":
                self.refusals.append((value, None))
            case "lag":
                self.lag = value
            case "name the follower":
                self.follower_is_named = value
            case "elect":
                self.leader, self.epoch, self.lag = value, self.epoch + 1, 0
                for partition in PARTITIONS:
                    self.bench.nodes.leaders[partition] = value
                    self.bench.nodes.epochs[partition] = self.epoch
                self.bench.nodes.describe()
            case "keep sessions":
                for number, replica in replicas.items():
                    replica.session_id = 40 + number if value else 0
            case _:
                self.bench.nodes.passed_ms += value

    async def poll(self, limit: int) -> None:
        for record in await self.bench.consumer.poll(0.002, max_records=limit):
            self.returned[record.partition].append(record.offset)

    async def heal(self) -> None:
        """End all faults, and read what there is."""
        self.refusals.clear()
        self.lag = 0
        for replica in self.bench.replicas.values():
            replica.faults.clear()
        await self.bench.consumer.resume(PARTITIONS)
        self.spread()
        async with asyncio.timeout(60):
            while any(len(offsets) < len(self.history) for offsets in self.returned.values()):
                await self.poll(100)
        await self.poll(100)


@settings(max_examples=examples(100))
@given(
    st.lists(actions, min_size=15, max_size=50),
    st.sampled_from(["none", "earliest", "latest"]),
    st.booleans(),
    st.booleans(),
)
def test_no_record_is_lost_repeated_or_returned_out_of_order(
    steps: list[tuple[str, Any]], reset: str, gives_bounds: bool, is_named: bool
) -> None:
    async def run() -> None:
        cluster = FaultyCluster(reset, gives_bounds=gives_bounds, is_named=is_named)
        await cluster.bench.consumer.assign(PARTITIONS)
        for partition in PARTITIONS:
            await cluster.bench.consumer.seek(partition, 0)
        for action, value in steps:
            await cluster.act(action, value)
        await cluster.heal()
        expected = list(range(len(cluster.history)))
        assert cluster.returned == {partition.partition: expected for partition in PARTITIONS}
        await cluster.bench.consumer.close()

    asyncio.run(run())
