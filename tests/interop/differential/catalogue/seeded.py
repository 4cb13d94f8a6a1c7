"""Requests with parameters drawn by lot: as many as fit into the time, the same for the same seed.

Drawn requests lie within what both nodes treat alike; where the nodes differ, the fixed part of the script says so.
"""

from collections.abc import Callable, Iterator
from functools import partial
from random import Random
from typing import Any

from interop.differential.catalogue.administration.configs import describe as describe_configs
from interop.differential.catalogue.administration.topics import create, topic
from interop.differential.catalogue.groups.classic_groups import beat, join, leave, sync
from interop.differential.catalogue.groups.group_offsets import commit, fetch_offsets
from interop.differential.catalogue.preparation import NOW_MS, created, ends, produce, records
from interop.differential.catalogue.records.fetch import fetch
from interop.differential.catalogue.records.offsets import delete_records, list_offsets
from interop.differential.script import Answers, Ask, Build, Script, every_version
from tailrace.protocol.messages.fetch import FetchRequest
from tailrace.protocol.messages.list_offsets import (
    ListOffsetsRequest,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)
from tailrace.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from tailrace.protocol.messages.produce import ProduceRequest
from tailrace.protocol.records.record import build_batch

TOPIC, COMPACTED, GROUP = "seeded", "seeded-compacted", "seeded-group"
STEPS = 600
_PARTITIONS = 3
_LARGEST = -3
"""The largest timestamp: asked where nothing is deleted, since Kafka names deleted records too."""
Drawn = tuple[str, Build, range | tuple[int, ...]]


def seeded(seed: int) -> Script:
    yield from created(TOPIC, _PARTITIONS)
    yield from created(COMPACTED, _PARTITIONS, {"cleanup.policy": "compact", "max.message.bytes": "2000"})
    chance = Random(seed)
    drawers: tuple[Callable[[Random], Drawn], ...] = (
        *(_produced, _produced, _sequenced, _fetched, _fetched, _listed, _listed, _epochs, _deleted),
        *(_committed, _offsets, _members, _metadata, _created, _configs),
    )
    for number in range(STEPS):
        name, build, versions = chance.choice(drawers)(chance)
        yield Ask(f"seeded {number}: {name}", chance.choice(versions), build)
    yield from _everything()


def _everything() -> Iterator[Ask]:
    for name in (TOPIC, COMPACTED):
        yield Ask(f"the ends of {name}", 10, partial(lambda name, _: ends(name, range(_PARTITIONS)), name))
        for partition in range(_PARTITIONS):
            yield Ask(f"the start of {name}-{partition}", 10, partial(lambda at, _: start_of(*at), (name, partition)))
            yield Ask(f"all of {name}-{partition}", 12, from_its_start(name, partition))


def start_of(name: str, partition: int) -> Any:
    return list_offsets(-2, topic=name, partition=partition)


def from_its_start(name: str, partition: int) -> Build:
    """A Fetch of everything that is left of a partition."""

    def build(answers: Answers) -> Any:
        (topic,) = answers[f"the start of {name}-{partition}"].topics
        return fetch((partition, topic.partitions[0].offset), topic=name, max_bytes=1 << 23)(answers)

    return build


def _topic(chance: Random) -> str:
    return chance.choice((TOPIC, TOPIC, COMPACTED))


def _partition(chance: Random) -> int:
    """A partition, now and then a partition that is not there."""
    places: tuple[int, ...] = (*range(_PARTITIONS), *range(_PARTITIONS), 7, -1)
    return chance.choice(places)


def _data(chance: Random, **settings: Any) -> bytes:
    drawn = records(
        chance.randint(1, 20),
        first_ms=NOW_MS + chance.randint(0, 1_000),
        key=chance.choice((b"key", b"", b"k", None)),
        bytes_each=chance.choice((0, 10, 300)),
    )
    data = build_batch(drawn, codec=chance.choice((0, 0, 1, 2, 3)), **settings)
    return bytes(data)


def _produced(chance: Random) -> Drawn:
    build = produce(_topic(chance), _data(chance), partition=_partition(chance))
    return "produce", build, every_version(ProduceRequest)


def _sequenced(chance: Random) -> Drawn:
    """Producers with invented ids: their sequences are right, repeated or wrong as it comes."""
    data = _data(
        chance,
        producer_id=chance.randint(500_000, 500_002),
        producer_epoch=chance.choice((0, 0, 0, 1)),
        base_sequence=chance.choice((0, 0, 5, 10)),
    )
    return "produce in sequence", produce(TOPIC, data, partition=chance.randrange(_PARTITIONS)), (9, 12)


def _fetched(chance: Random) -> Drawn:
    wanted = {_partition(chance): chance.choice((0, 0, 1, 2, 3, 5, 8)) for _ in range(chance.randint(1, 3))}
    build = fetch(
        *wanted.items(),
        topic=_topic(chance),
        max_bytes=chance.choice((0, 1, 1_000, 1 << 20)),
        partition_max_bytes=chance.choice((0, 1, 1_000, 1 << 20)),
        isolation=chance.choice((0, 1)),
        epoch=chance.choice((-1, -1, 0, 1)),
    )
    return "fetch", build, every_version(FetchRequest)


def _listed(chance: Random) -> Drawn:
    timestamp = chance.choice((-1, -2, -3, -4, -5, 0, NOW_MS + chance.randint(-10, 1_100)))
    request = list_offsets(
        timestamp,
        topic=COMPACTED if timestamp == _LARGEST else _topic(chance),
        partition=_partition(chance),
        epoch=chance.choice((-1, 0, 3)),
        isolation=chance.choice((0, 1)),
    )
    return f"offset at {timestamp}", lambda _: request, every_version(ListOffsetsRequest)


def _epochs(chance: Random) -> Drawn:
    wanted = OffsetForLeaderPartition(
        partition=_partition(chance), current_leader_epoch=chance.choice((-1, 0, 2)), leader_epoch=chance.randint(-1, 3)
    )
    topics = (OffsetForLeaderTopic(topic=_topic(chance), partitions=(wanted,)),)
    return "epoch", lambda _: OffsetForLeaderEpochRequest(topics=topics), every_version(OffsetForLeaderEpochRequest)


def _deleted(chance: Random) -> Drawn:
    request = delete_records((_partition(chance), chance.choice((-1, 0, 1, 2, 10_000))), topic=_topic(chance))
    return "delete records", lambda _: request, (0, 1, 2)


def _committed(chance: Random) -> Drawn:
    offsets = {_partition(chance): (chance.randrange(100), chance.choice(("", "note", None))) for _ in range(2)}
    member, generation = chance.choice((("", -1), ("", -1), ("x", 1), ("", 3)))
    request = commit(GROUP, offsets, topic=_topic(chance), member=member, generation=generation)
    return "commit", lambda _: request, range(2, 10)


def _offsets(chance: Random) -> Drawn:
    indexes = {_partition(chance) for _ in range(3)}
    request = fetch_offsets(GROUP, *sorted(indexes), topic=_topic(chance), stable=chance.random() < 0.5)
    return "offsets", lambda _: request, range(1, 10)


def _members(chance: Random) -> Drawn:
    """Members that are not there, in every way to say so."""
    generation = chance.choice((-1, 0, 1, 5))
    instance = chance.choice((None, None, "i"))
    name, request, newest = chance.choice(
        (
            ("join", join(GROUP, "nobody", instance=instance), 9),
            ("sync", sync(GROUP, "nobody", generation, instance=instance), 5),
            ("heartbeat", beat(GROUP, "nobody", generation, instance), 4),
            ("leave", leave(GROUP, "nobody", instance), 5),
        )
    )
    return name, lambda _: request, range(newest + 1)


def _metadata(chance: Random) -> Drawn:
    names = {chance.choice((TOPIC, COMPACTED, "nowhere", "no/such")) for _ in range(3)}
    topics = tuple(MetadataRequestTopic(name=name) for name in sorted(names))
    request = MetadataRequest(topics=topics, allow_auto_topic_creation=False)
    return "metadata", lambda _: request, every_version(MetadataRequest)


def _created(chance: Random) -> Drawn:
    """Only checked: whether the change may be, in whatever combination."""
    settings = chance.choice(
        ({}, {"retention_ms": "5"}, {"retention_ms": "x"}, {"segment_bytes": "3"}, {"cleanup_policy": "compact"})
    )
    wanted = topic(
        chance.choice(("new", TOPIC, "no/such", "")),
        chance.choice((-1, 0, 1, 3)),
        chance.choice((-1, 1, 0, 2)),
        chance.choice(((), (), ((0, (1,)),))),
        **settings,
    )
    return "create", lambda _: create(wanted, validate_only=True), range(2, 8)


def _configs(chance: Random) -> Drawn:
    keys = tuple(chance.sample(("retention.ms", "cleanup.policy", "segment.ms", "max.message.bytes", "no.such"), 2))
    request = describe_configs(_topic(chance), keys=keys, synonyms=chance.random() < 0.5)
    return "settings", lambda _: request, range(1, 5)
