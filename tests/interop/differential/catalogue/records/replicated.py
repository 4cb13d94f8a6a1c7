"""Replicated partitions at three brokers in three racks: reads from leaders and followers, and followers' fetches."""

from collections.abc import Mapping
from typing import Any

from interop.differential.catalogue.preparation import LIMIT_MS, batch, produce
from interop.differential.catalogue.records.fetch import fetch
from interop.differential.catalogue.records.offsets import delete_records
from interop.differential.catalogue.records.sessions import Session, Want, fetch_of
from interop.differential.catalogue.whole import SETTINGS as SETTINGS_OF_ONE
from interop.differential.script import Ask, Build, Script, ask, every_version
from tailrace.protocol.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)
from tailrace.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from tailrace.protocol.messages.topics import CreatableReplicaAssignment, CreatableTopic, CreateTopicsRequest

SETTINGS: Mapping[str, str] = {
    **{name: value for name, value in SETTINGS_OF_ONE.items() if name != "node.id"},
    "replica.selector.class": "org.apache.kafka.common.replica.RackAwareReplicaSelector",
}
RACKS = ("a", "b", "c")
BROKERS = (1, 2, 3)
TOPIC = "replicated"
REPLICAS = ((1, 2, 3), (2, 3, 1), (3, 1, 2))
"""Replicas of each partition; the first leads."""
LEADER, FOLLOWER, OTHER_FOLLOWER = REPLICAS[0]
END = 9
"""The end of partition 0 when the partition is filled."""
_VERSIONS = (4, 10, 11, 12, 18)
_WITH_RACK = (11, 12, 18)
_WITH_REPLICA_EPOCH = 15


def replicated() -> Script:
    yield from _made()
    yield from _consumers()
    yield from _racks()
    yield from _sessions_of_consumers()
    yield from _offsets()
    yield from _followers()
    yield from _sessions_of_followers()
    yield from _deleted()
    yield from _refused()


def at(broker: int) -> str:
    """A connection to this broker."""
    return f"main@{broker}"


def _made() -> Script:
    assignments = tuple(
        CreatableReplicaAssignment(partition_index=number, broker_ids=replicas)
        for number, replicas in enumerate(REPLICAS)
    )
    topic = CreatableTopic(name=TOPIC, num_partitions=-1, replication_factor=-1, assignments=assignments, configs=())
    yield from ask(f"create {TOPIC}", CreateTopicsRequest(topics=(topic,), timeout_ms=LIMIT_MS))
    shown = MetadataRequest(topics=(MetadataRequestTopic(name=TOPIC),), allow_auto_topic_creation=False)
    for broker in BROKERS:
        # Version 0 names no controller: Kafka would name any broker.
        yield from ask(f"{TOPIC} at {broker}", shown, 0, until=_are_in_sync, connection=at(broker))
    for partition, (leader, *_) in enumerate(REPLICAS):
        led = ListOffsetsRequest(replica_id=-1, topics=_wanted(partition, -1))
        yield from ask(f"{TOPIC}-{partition} is led", led, until=_is_led, connection=at(leader))
    yield from _appended(0, 5, 0)
    yield from _appended(0, 4, 5)
    yield from _appended(1, 2, 0)
    yield from _appended(2, 2, 0)


def _appended(partition: int, count: int, before: int) -> Script:
    """So many records more; all followers know that the records are committed."""
    leader, *followers = REPLICAS[partition]
    end = before + count
    name = f"records {before} to {end - 1} of partition {partition}"
    yield Ask(name, 9, produce(TOPIC, batch(count), partition=partition), at(leader))
    for broker in followers:
        build = fetch((partition, before), topic=TOPIC)
        yield Ask(f"{name} at {broker}", 12, build, at(broker), until=lambda answer: _high_watermark(answer) == end)


def _are_in_sync(answer: Any) -> bool:
    partitions = answer.topics[0].partitions
    return len(partitions) == len(REPLICAS) and all(len(each.isr_nodes) == len(BROKERS) for each in partitions)


def _is_led(answer: Any) -> bool:
    return bool(answer.topics[0].partitions[0].error_code == 0)


def _high_watermark(answer: Any) -> int:
    return int(answer.responses[0].partitions[0].high_watermark)


def _wanted(partition: int, timestamp: int, epoch: int = -1) -> tuple[ListOffsetsTopic, ...]:
    asked = ListOffsetsPartition(partition_index=partition, timestamp=timestamp, current_leader_epoch=epoch)
    return (ListOffsetsTopic(name=TOPIC, partitions=(asked,)),)


def _read(
    *wanted: Want, rack: str = "", isolation: int = 0, replica: tuple[int, int] | None = None, max_bytes: int = 1 << 20
) -> Build:
    """A fetch outside of a session."""
    return fetch_of(lambda _: (0, -1), wanted, rack=rack, isolation=isolation, replica=replica, max_bytes=max_bytes)


def _want(offset: int, partition: int = 0, **settings: Any) -> Want:
    return Want(partition, offset, TOPIC, **settings)


def _ask(name: str, build: Build, *versions: int, broker: int) -> Script:
    for version in versions:
        yield Ask(f"{name}, at {broker}", version, build, at(broker))


def _consumers() -> Script:
    """Without a rack: the leader, its followers, and offsets in and out of range."""
    for broker in BROKERS:
        for offset in (0, 5, END, END + 1, 99, -1):
            yield from _ask(f"a read from {offset}", _read(_want(offset)), *_VERSIONS, broker=broker)
        yield from _ask("a read from 0, committed", _read(_want(0), isolation=1), 4, 11, 18, broker=broker)
        for epoch in (0, 1, 7):
            read = _read(_want(0, leader_epoch=epoch))
            yield from _ask(f"a read in epoch {epoch}", read, 9, 11, 12, 18, broker=broker)
            read = _read(_want(99, leader_epoch=epoch))
            yield from _ask(f"a read out of range in epoch {epoch}", read, 11, 18, broker=broker)
        everything = _read(*(_want(0, partition) for partition in range(3)))
        yield from _ask("a read of three partitions", everything, *_VERSIONS, broker=broker)
        yield from _ask("a read of a partition too many", _read(_want(0, 3)), 4, 12, 18, broker=broker)


def _racks() -> Script:
    """With a rack: the leader names the closest replica, if that can serve the read."""
    for rack in (*RACKS, "z", ""):
        for offset in (0, 5, END, END + 1, 99):
            read = _read(_want(offset), rack=rack)
            for broker in BROKERS:
                yield from _ask(f"a read from {offset} by rack {rack!r}", read, *_WITH_RACK, broker=broker)
        read = _read(_want(0), rack=rack, isolation=1)
        yield from _ask(f"a committed read by rack {rack!r}", read, *_WITH_RACK, broker=LEADER)
        read = _read(*(_want(0, partition) for partition in range(3)), rack=rack)
        yield from _ask(f"a read of three partitions by rack {rack!r}", read, *_WITH_RACK, broker=LEADER)
    yield from _ask("a read in epoch 7 by rack 'b'", _read(_want(0, leader_epoch=7), rack="b"), 11, 18, broker=LEADER)
    yield from _ask("a debugger's read by rack 'b'", _read(_want(0), rack="b", replica=(-2, -1)), 11, 18, broker=LEADER)


def _sessions_of_consumers() -> Script:
    end = END
    for version in (11, 12, 18):
        session = Session(f"a session with a rack in v{version}", version, connection=at(LEADER))
        yield from session.make("names the closest replica", _want(0), rack="b")
        yield from session.next("names it again", rack="b")
        yield from session.next("in a rack of no broker", rack="z")
        yield from session.next("in the leader's rack", rack="a")
        yield from session.next("at the end, without a rack", _want(end))
        yield from session.next("at the end, by rack b", rack="b")
        yield from session.next("forgets", forgotten=[_want(0)])
        two = Session(f"a session with a follower in v{version}", version, connection=at(FOLLOWER))
        yield from two.make("is made", _want(0), _want(0, 2))
        yield from two.next("the records again")
        yield from two.next("at the end", _want(end), _want(2, 2))
        yield from two.next("nothing is new")
        yield from _appended(0, 1, end)
        end += 1
        yield from two.next("a record is new")
        yield from two.next("it is taken", _want(end))
        yield from two.next("beyond the end", _want(end + 50))
        yield from two.next("back at the end", _want(end))
        yield from two.at(-1, "is closed")


def _offsets() -> Script:
    for broker in BROKERS:
        for replica in (-1, -2):
            for timestamp in (-1, -2, -3):
                request = ListOffsetsRequest(replica_id=replica, topics=_wanted(0, timestamp))
                versions = (7, 10) if timestamp == -3 else (1, 4, 7, 10)
                name = f"timestamp {timestamp} for replica {replica}, at {broker}"
                yield from ask(name, request, *versions, connection=at(broker))
        request = ListOffsetsRequest(replica_id=-1, topics=_wanted(0, -1, epoch=7))
        yield from ask(f"the end in epoch 7, at {broker}", request, 4, 10, connection=at(broker))
        for epoch in (0, 1):
            for replica in (-1, -2):
                partition = OffsetForLeaderPartition(partition=0, current_leader_epoch=-1, leader_epoch=epoch)
                topics = (OffsetForLeaderTopic(topic=TOPIC, partitions=(partition,)),)
                asked = OffsetForLeaderEpochRequest(replica_id=replica, topics=topics)
                name = f"the end of epoch {epoch} for replica {replica}, at {broker}"
                yield from ask(name, asked, *every_version(OffsetForLeaderEpochRequest), connection=at(broker))


def _followers() -> Script:
    """As brokers fetch. The offset is the end, or what is read changes nothing that is known of the follower."""
    end = END + 3
    for version in (4, 11, 12, 14, 15, 17, 18):
        for replica in ((FOLLOWER, -1), (7, -1), (LEADER, -1)):
            for broker in BROKERS:
                name = f"a fetch of follower {replica[0]}"
                yield from _ask(name, _read(_want(end), replica=replica), version, broker=broker)
        name = f"a fetch of follower {FOLLOWER} beyond the end"
        yield from _ask(name, _read(_want(99), replica=(FOLLOWER, -1)), version, broker=LEADER)
        for epoch in (0, 1) if version >= 9 else ():
            name = f"a fetch of follower {FOLLOWER} in epoch {epoch}"
            read = _read(_want(end, leader_epoch=epoch), replica=(FOLLOWER, -1))
            yield from _ask(name, read, version, broker=LEADER)
        for epoch in (0, 2**62) if version >= _WITH_REPLICA_EPOCH else ():
            name = f"a fetch of follower {FOLLOWER} of broker epoch {epoch}"
            yield from _ask(name, _read(_want(end), replica=(FOLLOWER, epoch)), version, broker=LEADER)


def _sessions_of_followers() -> Script:
    end = END + 3
    for version in (11, 12, 18):
        session = Session(
            f"a session of a follower in v{version}", version, connection=at(LEADER), replica=(FOLLOWER, -1)
        )
        yield from session.make("is made", _want(end))
        yield from session.next("nothing is new")
        yield from session.next("what another broker leads", _want(2, 1))
        yield from session.next("that again")
        yield from session.at(9, "a wrong epoch")
        yield from session.at(-1, "is closed")


def _deleted() -> Script:
    """The log start moves at the leader, and at the followers a moment later."""
    yield Ask("records before 3 are deleted", 2, lambda _: delete_records((0, 3), topic=TOPIC), at(LEADER))
    for broker in BROKERS:
        yield Ask(
            f"the log start, at {broker}",
            12,
            _read(_want(5)),
            at(broker),
            until=lambda answer: bool(answer.responses[0].partitions[0].log_start_offset == 3),
        )
        for offset in (0, 2, 3):
            yield from _ask(f"a read from {offset} after that", _read(_want(offset)), 11, 18, broker=broker)
            read = _read(_want(offset), rack="c")
            yield from _ask(f"a read from {offset} by rack 'c' after that", read, 11, 18, broker=broker)


def _refused() -> Script:
    """Requests for the leader that a follower gets."""
    for version in (9, 13):
        yield Ask("a produce to a follower", version, produce(TOPIC, batch(1)), at(FOLLOWER))
    for version in (0, 2):
        yield Ask("records deleted at a follower", version, lambda _: delete_records((0, 4), topic=TOPIC), at(FOLLOWER))
