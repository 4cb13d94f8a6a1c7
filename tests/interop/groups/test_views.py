"""Members of an ordinary group split one partition by its keys: through a view, with clients that know no views.

Each record comes once over all members, and each key's records in order. Before a member joins or leaves, what was
read is committed: the lag of each view partition is 0, even if its last record is not the last of the log.
"""

from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import closing

import kafka
import pytest

from interop.clients import CLIENTS, Aiokafka, ForeignClient, KafkaPython, KafkaPythonElsewhere, Member, absent
from interop.java_client import Java, JavaConsumerProtocol
from interop.kafkajs import KafkaJs
from interop.librdkafka import Confluent, ConfluentConsumerProtocol, Message
from interop.own_client import OwnClassic, OwnConsumerProtocol
from tailrace.client.admin.topics import NewTopic
from tailrace.client.blocking import Admin, Producer
from tailrace.model.key_ranges import hash_of
from tailrace.testing import Cluster
from testkit.programs.waiting import wait_until

FAN_OUT = 8
EVERYTHING = set(range(FAN_OUT))
KEYS = [b"key-%d" % number for number in range(40)]
AFTER_ANOTHER_LEADER = (Confluent(), KafkaPythonElsewhere(), Aiokafka(), KafkaJs(), Java(), JavaConsumerProtocol())
EVERY_CLIENT = (
    *CLIENTS,
    ConfluentConsumerProtocol(),
    JavaConsumerProtocol(),
    OwnClassic(),
    OwnConsumerProtocol(),
)


class ReadView:
    """A topic of one partition whose view is read by a group."""

    def __init__(self, bootstrap: str, topic: str, client: ForeignClient) -> None:
        self.bootstrap, self.topic, self.client = bootstrap, topic, client
        self.view, self.group = f"{topic}.shared-{FAN_OUT}", f"group-{topic}"
        self.seen: list[Message] = []
        self.may_repeat = False
        """Whether records may come again: their first deliveries count."""
        self.sent = 0

    def join(self) -> Member:
        return self.client.join(self.bootstrap, self.view, self.group)

    def send(self, count: int) -> None:
        """Send the next numbers, in small batches with several keys."""
        with Producer(self.bootstrap, linger_ms=2) as producer:
            for number in range(self.sent, self.sent + count):
                producer.send(self.topic, key=KEYS[number * 7 % len(KEYS)], value=b"%d" % number)
            producer.flush()
        self.sent += count

    def poll_until(self, members: list[Member], holds: Callable[[], bool], what: str) -> None:
        def condition() -> bool:
            for member in members:
                self._take(member.poll())
            return bool(holds())

        wait_until(condition, f"{what}: {self.client.name}")

    def _take(self, messages: list[Message]) -> None:
        for message in messages:
            if not (self.may_repeat and message in self.seen):
                self.seen.append(message)

    def read_all(self, members: list[Member]) -> None:
        """Read all that was sent until the members have committed their positions."""
        self.poll_until(members, lambda: len(self.seen) >= self.sent, "all records are read")
        with Admin(self.bootstrap) as admin:
            self.poll_until(members, lambda: self._has_no_lag(admin), "all is committed, and there is no lag")
        self.check()

    def _has_no_lag(self, admin: Admin) -> bool:
        lags = {partition.partition: end - at.offset for partition, (at, end) in admin.group_lag(self.group).items()}
        assert all(lag >= 0 for lag in lags.values()), f"no member is behind the end of the view: {lags}"
        with_records = {hash_of(message.key, 0) * FAN_OUT >> 32 for message in self.seen}
        return with_records <= lags.keys() and not any(lags.values())

    def check(self) -> None:
        """Check that every record came once, and every key's records in order."""
        numbers = [int(message.value or b"") for message in self.seen]
        assert sorted(numbers) == list(range(self.sent))
        of_key: dict[bytes | None, list[int]] = defaultdict(list)
        for message, number in zip(self.seen, numbers, strict=True):
            of_key[message.key].append(number)
        assert all(found == sorted(found) for found in of_key.values())


def is_split(members: list[Member]) -> bool:
    held = [member.assignment() for member in members]
    return set().union(*held) == EVERYTHING and sum(map(len, held)) == FAN_OUT and all(held)


@pytest.mark.interop
@pytest.mark.parametrize("client", EVERY_CLIENT, ids=lambda client: client.name)
def test_members_share_one_partition(tailrace_cluster: Cluster, client: ForeignClient) -> None:
    if why := absent(client):
        pytest.skip(why)
    reading = ReadView(tailrace_cluster.bootstrap_servers, f"keyed-{client.name}", client)
    with Admin(reading.bootstrap) as admin:
        admin.create_topics({reading.topic: 1})
    with closing(reading.join()) as first:
        reading.poll_until([first], lambda: first.assignment() == EVERYTHING, "the first member has all partitions")
        reading.send(100)
        reading.read_all([first])
        with closing(reading.join()) as second:
            both = [first, second]
            reading.poll_until(both, lambda: is_split(both), "two members split the partition")
            reading.send(100)
            reading.read_all(both)
        reading.poll_until([first], lambda: first.assignment() == EVERYTHING, "the first member has all again")
        reading.send(50)
        reading.read_all([first])


@pytest.fixture(scope="module")
def three_brokers() -> Iterator[Cluster]:
    with Cluster(brokers=3, config={"offsets.topic.replication.factor": "3", "min.insync.replicas": "2"}) as running:
        yield running


@pytest.mark.interop
@pytest.mark.parametrize("client", AFTER_ANOTHER_LEADER, ids=lambda client: client.name)
def test_members_share_a_partition_whose_leader_changes(three_brokers: Cluster, client: ForeignClient) -> None:
    if why := absent(client):
        pytest.skip(why)
    reading = ReadView(three_brokers.bootstrap_servers, f"moved-{client.name}", client)
    with Admin(reading.bootstrap) as admin:
        admin.create_topics([NewTopic(name=reading.topic, partitions=1, replication_factor=3)])
        with closing(reading.join()) as first, closing(reading.join()) as second:
            both = [first, second]
            reading.poll_until(both, lambda: is_split(both), "two members split the partition")
            reading.send(100)
            reading.read_all(both)
            (described,) = (description for description in admin.describe_topics() if description.name == reading.topic)
            leader = int(described.partitions[0].leader)
            # kafkajs 2.2.4 begins again at the last offset that its group has committed when it loses a broker.
            reading.may_repeat = client.name == "kafkajs"
            three_brokers.stop(leader)
            try:
                reading.send(100)
                reading.read_all(both)
            finally:
                three_brokers.start(leader)
            reading.send(50)
            reading.read_all(both)


@pytest.mark.interop
def test_a_position_meets_the_end(tailrace_cluster: Cluster) -> None:
    """A client that reads up to the end at its begin gets there, though other members have the last records."""
    reading = ReadView(tailrace_cluster.bootstrap_servers, "met", KafkaPython())
    with Admin(reading.bootstrap) as admin:
        admin.create_topics({reading.topic: 1})
    reading.send(200)
    consumer = kafka.KafkaConsumer(bootstrap_servers=reading.bootstrap, enable_auto_commit=False)
    with closing(consumer):
        partitions = [kafka.TopicPartition(reading.view, number) for number in range(FAN_OUT)]
        consumer.assign(partitions)
        consumer.seek_to_beginning(*partitions)
        ends = consumer.end_offsets(partitions)
        assert len(set(ends.values())) > 1

        def has_met() -> bool:
            for records in consumer.poll(timeout_ms=200).values():
                reading.seen += [Message(record.key, record.value) for record in records]
            return bool({partition: consumer.position(partition) for partition in partitions} == ends)

        wait_until(has_met, "each position is at the end of its view partition")
        reading.check()
        assert all(consumer.highwater(partition) in (ends[partition], None) for partition in partitions)
        assert reading.view not in consumer.topics()
