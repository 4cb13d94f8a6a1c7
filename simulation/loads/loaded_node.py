"""A node under mixed load on the simulated disk, its lives, its clients, and what they have been answered."""

import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from random import Random
from typing import Any

from simulation.loads.late_disk import DiskWithNetwork, LateDisk
from simulation.loads.load_clients import COMPACTED, ORDERS, SETTINGS, TRIMMED, LoadClient, LoadProducer, key_of
from tailrace.protocol.messages.configs import (
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResource,
    IncrementalAlterConfigsResponse,
    IncrementallyAlterableConfig,
)
from tailrace.protocol.messages.groups import FindCoordinatorRequest
from tailrace.protocol.messages.offsets import OffsetCommitResponse
from tailrace.protocol.messages.produce import ProduceResponse
from tailrace.protocol.messages.topics import (
    CreatableTopic,
    CreatableTopicConfig,
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreatePartitionsTopic,
    CreateTopicsRequest,
    CreateTopicsResponse,
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DeleteRecordsTopic,
    DeleteTopicsRequest,
    DeleteTopicsResponse,
)
from tailrace.protocol.messages.transactions import InitProducerIdRequest
from tailrace.protocol.records.batch import iter_batches
from tailrace.protocol.records.record import Record
from tailrace.server.partitions.cleaner import CleanerConfig
from tailrace.server.partitions.periodic_work import PeriodicWork, PeriodicWorkConfig
from tailrace.server.partitions.scrubber import ScrubberConfig
from tailrace.testing.clock import ManualClock
from tailrace.testing.disk import PowerCut
from testkit.coordinators.group_path import GroupPath
from testkit.nodes.data_path import Exchange, records_of
from testkit.nodes.faults import Killed
from testkit.nodes.ports import RecordingConnection
from testkit.verdicts.node_verdict import AtTheEnd, node_faults
from testkit.verdicts.replica_history import ReplicaHistory

LONGEST_LIVES = (100, 500, 2000)
"""The most operations of the disk until the end of a life: one entry of this list."""
SHARE_OF_KILLS = 0.25
"""The share of the ends that leave the disk its power: only the process is killed."""
SHARE_OF_STOPS = 0.4
"""So many lives end in a clean stop, unless the power goes before that stop, or during the stop."""
LONGEST_UNTIL_STOP = 60
PARTITIONS = 2
GROUP, CHECKER = "readers", "checker"
IN_FLIGHT = 5
SMALL_SEGMENTS = {"segment.bytes": "700", "index.interval.bytes": "200", "file.delete.delay.ms": "20"}
TOPICS = {
    ORDERS: (PARTITIONS, SMALL_SEGMENTS),
    COMPACTED: (1, {**SMALL_SEGMENTS, "cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0.1"}),
    TRIMMED: (1, SMALL_SEGMENTS),
    SETTINGS: (1, {}),
}
PERIODIC_WORK = PeriodicWorkConfig(
    log_retention_check_interval_ms=40,
    replica_high_watermark_checkpoint_interval_ms=30,
    log_flush_offset_checkpoint_interval_ms=25,
    log_flush_start_offset_checkpoint_interval_ms=35,
    cleaner=CleanerConfig(log_cleaner_backoff_ms=15),
    scrubber=ScrubberConfig(log_scrub_enable=False),
)


class LoadedNode:
    """A node on a disk, its clients, and their answers."""

    def __init__(self, seed: int, *, lying_sync: bool = False, hasty: bool = False) -> None:
        self.chance = Random(seed)
        self.files = DiskWithNetwork(seed, lying_sync=lying_sync)
        self.history = ReplicaHistory()
        self.counts: Counter[str] = Counter()
        self.node: GroupPath
        self.disk: LateDisk
        self.periodic_work: PeriodicWork
        self.admin = LoadClient()
        self.producers = [
            *(LoadProducer(f"i{n}", partition=n % PARTITIONS) for n in range(3)),
            *(LoadProducer(f"p{n}", partition=n % PARTITIONS) for n in range(2)),
            LoadProducer("c0", COMPACTED),
            LoadProducer("t0", TRIMMED),
        ]
        self.files.on_end = self.end
        self._connection = RecordingConnection()
        self._hasty = hasty
        self._is_alive = True
        self._starts = 0
        self._now_ms = 1_700_000_000_000
        self._producer_ids: set[int] = set()
        self._committed = [0] * PARTITIONS
        self._made = 0
        self._alive: dict[str, int] = {}
        """Topics that the administrator has created and that must exist, with the requested partitions."""
        self._settings = 0
        self._trimmed_to = self._may_be_trimmed_to = 0

    @property
    def clients(self) -> tuple[LoadClient, ...]:
        return (*self.producers, self.admin)

    def note(self, op: str, **facts: Any) -> None:
        self.counts[op] += 1
        self.history.add([{"op": op, **facts}])

    # The life of a node

    def live_and_die(self) -> None:
        """Start, work, and lose power or be killed at an operation that the seed chooses."""
        last = self.files.operations + self.chance.randrange(1, self.chance.choice(LONGEST_LIVES))
        if self.chance.random() < SHARE_OF_KILLS:
            self.files.on_operation = lambda number, _: self.kill_at(last, number)
        else:
            self.files.cut_power_at(last, after=self.chance.random() < 0.5)
        is_stopped = self.chance.random() < SHARE_OF_STOPS
        things_to_do = self.chance.randrange(LONGEST_UNTIL_STOP) if is_stopped else sys.maxsize
        try:
            self.start()
            while things_to_do:
                things_to_do -= 1
                self.work()
            self.stop()
            self.counts["clean stops"] += 1
            if self.chance.random() < 0.5:
                self.files.power_cut()
        except (PowerCut, Killed):
            self.counts["kills" if self.files.has_power else "power cuts"] += 1
        self.files.on_operation = None
        self.files.forget_faults()
        if not self.files.has_power:
            self.files.reboot()
        for client in self.clients:
            client.lose_connection()

    def stop(self) -> None:
        """Do what `Node.stop` does: take no more requests, flush and answer the requests that were taken, close the
        logs."""
        self.periodic_work.stop()
        self.node.end_turn()
        self.until(lambda: self.disk.is_idle and not any(client.asked for client in self.clients), "all is answered")
        self.node.stop()
        self.end()

    def kill_at(self, last: int, number: int) -> None:
        if number >= last:
            self.end()
            raise Killed

    def end(self) -> None:
        """Note that the node has ended."""
        self._is_alive = False
        self._connection.is_open = False

    def start(self) -> None:
        self._is_alive = True
        self._starts += 1
        self._now_ms += 1_000
        clock = ManualClock(now_ms=self._now_ms)
        self.disk = LateDisk(clock, self.chance, hasty=self._hasty)
        self.node = GroupPath("/data", files=self.files, clock=clock, disk=self.disk, start=self._starts)
        self._connection = self.node.connection
        self.until(lambda: self.node.is_ready, "the node is ready")
        self.periodic_work = PeriodicWork(
            self.node.table, clock=clock, disk=self.disk, config=PERIODIC_WORK, on_short_of_space=lambda _: None
        )
        self.periodic_work.start()
        for topic in TOPICS:
            if topic not in self.node.controller.image.topics:
                self.create(topic, *TOPICS[topic])
                self.until(lambda: not self.admin.asked, "the topics are there")
        request = FindCoordinatorRequest(key=GROUP, coordinator_keys=(GROUP,))
        self.admin.ask(lambda: self.node.send(request, 4), then=lambda _: None, unknown=lambda: None)
        self.until(lambda: not self.admin.asked, "the group has a coordinator")
        for producer in self.producers:
            self.greet(producer)

    def until(self, condition: Callable[[], bool], what: str) -> None:
        for _ in range(2_000):
            if condition():
                return
            self.pass_time(1)
        raise AssertionError(f"never: {what}")

    def check_alive(self) -> None:
        """Raise Killed if this life has ended: some callers of the disk survive its end, and answer with an error,
        which is not delivered."""
        if not self._is_alive:
            raise Killed

    def pass_time(self, milliseconds: int) -> None:
        self.check_alive()
        self.node.clock.advance(milliseconds)
        self._now_ms = self.node.clock.now_ms()
        for client in self.clients:
            client.hear()

    def work(self) -> None:
        """Some client does something, or a little time passes."""
        self.check_alive()
        acts = (self.produce, self.commit, self.administer, self.trim, lambda: self.pass_time(self.chance.randrange(9)))
        (act,) = self.chance.choices(acts, weights=(10, 2, 1, 1, 4))
        act()
        if self.chance.random() < 0.5:
            self.node.end_turn()

    def send(self, request: Any, version: int) -> Exchange:
        return self.node.send(request, version, same_turn=True)

    # Producers

    def greet(self, producer: LoadProducer) -> None:
        """Get a producer id for producers without an id, and send requests without an answer once more."""
        if producer.is_idempotent and producer.producer_id < 0:
            exchange = self.node.send(InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=60_000), 4)
            self.until(lambda: exchange.is_answered, "there is a producer id")
            producer.producer_id = exchange.response.producer_id
            assert producer.producer_id not in self._producer_ids, "a producer id is given once"
            self._producer_ids.add(producer.producer_id)
        while producer.repeated:
            self.send_batch(producer, *producer.repeated.pop(0))

    def produce(self) -> None:
        producer = self.chance.choice(self.producers)
        if len(producer.asked) < IN_FLIGHT:
            first, size = producer.sent, self.chance.randrange(1, 4)
            producer.sent += size
            self.send_batch(producer, first, size)

    def send_batch(self, producer: LoadProducer, first: int, count: int) -> None:
        records = producer.batch(first, count, self.node.clock.now_ms())
        producer.ask(
            lambda: self.node.produce(producer.topic, partition=producer.partition, records=records, same_turn=True),
            then=lambda response: self.produced(producer, first, count, response),
            unknown=lambda: self.not_produced(producer, first, count),
        )

    def produced(self, producer: LoadProducer, first: int, count: int, response: ProduceResponse) -> None:
        ((answer,),) = (topic.partition_responses for topic in response.responses)
        for number in range(first, first + count):
            if answer.error_code:
                self.note("unknown", producer=producer.name, number=number)
            else:
                record = number, answer.base_offset + number - first
                place = {"topic": producer.topic, "partition": producer.partition}
                self.note("acked", producer=producer.name, records=[record], **place)

    def not_produced(self, producer: LoadProducer, first: int, count: int) -> None:
        if producer.is_idempotent:
            self.counts["repeated"] += 1
            producer.repeated.append((first, count))
            return
        for number in range(first, first + count):
            self.note("unknown", producer=producer.name, number=number)

    # The group

    def commit(self) -> None:
        partition = self.chance.randrange(PARTITIONS)
        self._committed[partition] += self.chance.randrange(1, 5)
        offset = self._committed[partition]
        place = {"reader": GROUP, "topic": ORDERS, "partition": partition}
        facts = {**place, "offset": offset, "asked_s": self._now_ms}

        def committed(response: OffsetCommitResponse) -> None:
            ((answer,),) = (topic.partitions for topic in response.topics)
            self.note("commit-unknown" if answer.error_code else "committed", at_s=self._now_ms, **facts)

        self.admin.ask(
            lambda: self.node.commit(GROUP, ORDERS, offset, partition=partition, same_turn=True),
            then=committed,
            unknown=lambda: self.note("commit-unknown", **facts),
        )

    # The administrator

    def administer(self) -> None:
        if self.admin.asked:
            return  # one change after the other, so that the test knows which was last
        what = self.chance.choice(("create", "enlarge", "delete", "set"))
        if what == "create" or (what != "set" and not self._alive):
            self._made += 1
            self.create(f"made-{self._made}", 2, {})
        elif what == "set":
            self.set()
        elif what == "delete":
            self.delete(self.chance.choice(list(self._alive)))
        else:
            self.enlarge(self.chance.choice(list(self._alive)))

    def create(self, topic: str, count: int, configs: Mapping[str, str]) -> None:
        settings = tuple(CreatableTopicConfig(name=name, value=value) for name, value in configs.items())
        wanted = CreatableTopic(
            name=topic, num_partitions=count, replication_factor=1, assignments=(), configs=settings
        )

        def created(response: CreateTopicsResponse) -> None:
            assert response.topics[0].error_code == 0, response
            self.note("create", topic=topic, count=count)
            if topic not in TOPICS:
                self._alive[topic] = count

        self.change(CreateTopicsRequest(topics=(wanted,)), 7, created, "create", topic=topic, count=count)

    def enlarge(self, topic: str) -> None:
        self._alive[topic] = count = self._alive[topic] + 1
        wanted = CreatePartitionsTopic(name=topic, count=count, assignments=None)
        request = CreatePartitionsRequest(topics=(wanted,), timeout_ms=1_000, validate_only=False)

        def enlarged(response: CreatePartitionsResponse) -> None:
            assert response.results[0].error_code == 0, response
            self.note("enlarge", topic=topic, count=count)

        self.change(request, 3, enlarged, "enlarge", topic=topic, count=count)

    def delete(self, topic: str) -> None:
        del self._alive[topic]
        request = DeleteTopicsRequest(topic_names=(topic,), timeout_ms=1_000)

        def deleted(response: DeleteTopicsResponse) -> None:
            assert response.responses[0].error_code == 0, response
            self.note("delete", topic=topic)

        self.change(request, 5, deleted, "delete", topic=topic)

    def set(self) -> None:
        self._settings += 1
        value = self._settings
        change = IncrementallyAlterableConfig(name="delete.retention.ms", config_operation=0, value=str(value))
        resource = IncrementalAlterConfigsResource(resource_type=2, resource_name=SETTINGS, configs=(change,))
        request = IncrementalAlterConfigsRequest(resources=(resource,), validate_only=False)

        def was_set(response: IncrementalAlterConfigsResponse) -> None:
            assert response.responses[0].error_code == 0, response
            self.note("set", value=value)

        self.change(request, 1, was_set, "set", value=value)

    def change(self, request: Any, version: int, then: Callable[[Any], None], op: str, **facts: Any) -> None:
        self.admin.ask(
            lambda: self.send(request, version),
            then=then,
            unknown=lambda: self.note(f"{op}-unknown", **facts),
        )

    def trim(self) -> None:
        """Delete some of the oldest records of a topic."""
        partition = self.node.table.get(TRIMMED, 0)
        offset = self.chance.randint(partition.log.log_start_offset, partition.high_watermark)
        self._may_be_trimmed_to = max(offset, self._may_be_trimmed_to)
        place = DeleteRecordsPartition(partition_index=0, offset=offset)
        wanted = DeleteRecordsTopic(name=TRIMMED, partitions=(place,))

        def trimmed(response: DeleteRecordsResponse) -> None:
            ((answer,),) = (topic.partitions for topic in response.topics)
            assert answer.error_code == 0, response
            self.counts["trimmed"] += 1
            self._trimmed_to = max(answer.low_watermark, self._trimmed_to)

        request = DeleteRecordsRequest(topics=(wanted,), timeout_ms=1_000)
        self.admin.ask(lambda: self.send(request, 2), then=trimmed, unknown=lambda: None)

    # The end

    def judge(self) -> list[str]:
        """Start a last time, let all clients finish, and name every promise that was broken."""
        self.start()
        self.until(lambda: not any(client.asked for client in self.clients), "everything is answered")
        for producer in self.producers:
            self.note("sent", producer=producer.name, count=producer.sent)
        for topic, partition in ((ORDERS, 0), (ORDERS, 1), (COMPACTED, 0), (TRIMMED, 0)):
            self.check(topic, partition)
        log_start = self.node.table.get(TRIMMED, 0).log.log_start_offset
        faults = node_faults(
            self.history, self.at_the_end(), checker=CHECKER, compacted=COMPACTED, careful="ict", key_of=key_of
        )
        if not self._trimmed_to <= log_start <= self._may_be_trimmed_to:
            faults.append(f"trimmed: {TRIMMED} starts at {log_start}, {self._trimmed_to} was acknowledged")
        return faults

    def check(self, topic: str, partition: int) -> None:
        """Read the partition from its start to its end."""
        here = {"reader": CHECKER, "topic": topic, "partition": partition, "at_s": self._now_ms}
        self.note("assigned", offset=self.node.table.get(topic, partition).log.log_start_offset, **here)
        for record in self.read(topic, partition):
            key = None if record.key is None else bytes(record.key).decode()
            value = bytes(record.value or b"").decode()
            self.note("polled", offsets=[record.offset], keys=[key], values=[value], **here)

    def read(self, topic: str, partition: int) -> Iterator[Record]:
        data = self.node.table.get(topic, partition)
        offset = data.log.log_start_offset
        while offset < data.high_watermark:
            given = self.node.fetch(topic, offset, partition=partition).fetched.records
            headers = [header for _, header in iter_batches(given or b"")]  # compaction leaves empty batches too
            assert headers, f"{topic}-{partition} ends at {offset} and not at {data.high_watermark}"
            yield from (record for record in records_of(given) if record.offset >= offset)
            offset = headers[-1].base_offset + headers[-1].last_offset_delta + 1

    def at_the_end(self) -> AtTheEnd:
        image = self.node.controller.image
        return AtTheEnd(
            topics={name: len(topic.partitions) for name, topic in image.topics.items()},
            committed={
                partition: offset
                for partition in range(2)
                if (offset := self.node.committed(GROUP, ORDERS, partition=partition)) >= 0
            },
            setting=self.node.table.get(SETTINGS, 0).config.delete_retention_ms,
        )
