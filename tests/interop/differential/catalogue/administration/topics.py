"""CreateTopics, CreatePartitions and DeleteTopics, with everything that may be wrong with them."""

from collections.abc import Sequence
from typing import Any

from interop.differential.catalogue.preparation import LIMIT_MS, created, gone, known
from interop.differential.script import Answers, Script, ask, every_version, key_versions
from tailrace.protocol.messages.topics import (
    CreatableReplicaAssignment,
    CreatableTopic,
    CreatableTopicConfig,
    CreatePartitionsAssignment,
    CreatePartitionsRequest,
    CreatePartitionsTopic,
    CreateTopicsRequest,
    DeleteTopicsRequest,
    DeleteTopicState,
)
from tailrace.protocol.schema import ZERO_UUID

TOPIC = "topics"
_CREATE = key_versions(CreateTopicsRequest)


def topics() -> Script:
    yield from created(TOPIC, 2)
    yield from _checked_only()
    yield from _refused()
    yield from _made()
    yield from _partitions()
    yield from _deleted()


def topic(
    name: str = "new",
    partitions: int = 1,
    factor: int = 1,
    assignments: Sequence[tuple[int, Sequence[int]]] = (),
    **configs: str | None,
) -> CreatableTopic:
    """A topic to make; settings are given with `_` for `.`."""
    return CreatableTopic(
        name=name,
        num_partitions=partitions,
        replication_factor=factor,
        assignments=tuple(
            CreatableReplicaAssignment(partition_index=index, broker_ids=tuple(brokers))
            for index, brokers in assignments
        ),
        configs=tuple(CreatableTopicConfig(name=key.replace("_", "."), value=value) for key, value in configs.items()),
    )


def create(*wanted: CreatableTopic, validate_only: bool = False) -> CreateTopicsRequest:
    return CreateTopicsRequest(topics=wanted, timeout_ms=LIMIT_MS, validate_only=validate_only)


def _checked_only() -> Script:
    checked = create(topic("only-checked", 3, retention_ms="1000", cleanup_policy="compact"), validate_only=True)
    yield from ask("a topic is only checked", checked, *every_version(CreateTopicsRequest))
    yield from ask("a topic that exists is only checked", create(topic(TOPIC), validate_only=True), *_CREATE)
    yield from ask("a bad topic is only checked", create(topic("new", 0), validate_only=True), *_CREATE)
    yield from ask("the defaults are only checked", create(topic("new", -1, -1), validate_only=True), *_CREATE)


def _refused() -> Script:
    bad_names = ("", ".", "..", "a b", "a/b", "x" * 250, "ä", "a\0b", "a:b", "a,b")
    bad = {
        **{f"named {name[:9]!r}": topic(name) for name in bad_names},
        "of 0 partitions": topic("new", 0),
        "of -2 partitions": topic("new", -2),
        "of factor 0": topic("new", 1, 0),
        "of factor -2": topic("new", 1, -2),
        "of factor 2": topic("new", 1, 2),
        "of factor 300": topic("new", 1, 300),
        "that exists": topic(TOPIC),
        "that exists, of 0 partitions": topic(TOPIC, 0),
        "that differs from another in a dot": topic("with_underscore.and.dot"),
        "assigned and of 1 partition": topic("new", 1, -1, [(0, [1])]),
        "assigned and of factor 1": topic("new", -1, 1, [(0, [1])]),
        "assigned to a broker that is not there": topic("new", -1, -1, [(0, [7])]),
        "assigned to broker -1": topic("new", -1, -1, [(0, [-1])]),
        "assigned to a broker twice": topic("new", -1, -1, [(0, [1, 1])]),
        "assigned to no broker": topic("new", -1, -1, [(0, [])]),
        "assigned with a gap": topic("new", -1, -1, [(0, [1]), (2, [1])]),
        "assigned from 1 on": topic("new", -1, -1, [(1, [1])]),
        "assigned twice": topic("new", -1, -1, [(0, [1]), (0, [1])]),
        "assigned to partition -1": topic("new", -1, -1, [(-1, [1])]),
        "assigned with different factors": topic("new", -1, -1, [(0, [1]), (1, [1, 2])]),
        "with an unknown setting": topic("new", no_such_setting="1"),
        "with a number that is none": topic("new", retention_ms="soon"),
        "with a number too small": topic("new", retention_ms="-2"),
        "with a number too large": topic("new", segment_bytes="99999999999"),
        "with a segment too small": topic("new", segment_bytes="1"),
        "with a policy that is none": topic("new", cleanup_policy="sometimes"),
        "with both policies": topic("both-policies", cleanup_policy="compact,delete"),
        "with an empty policy": topic("empty-policy", cleanup_policy=""),
        "with a truth that is none": topic("new", preallocate="perhaps"),
        "with a null setting": topic("new", retention_ms=None),
        "with lags that contradict": topic("new", min_compaction_lag_ms="10", max_compaction_lag_ms="5"),
        "with a ratio above 1": topic("new", min_cleanable_dirty_ratio="1.5"),
        "with 0 in sync": topic("new", min_insync_replicas="0"),
        "with 2 in sync of 1": topic("two-in-sync", min_insync_replicas="2"),
        "with a codec that is none": topic("new", compression_type="best"),
        "with a codec in capitals": topic("new", compression_type="GZIP"),
        "with spaces around a number": topic("spaces-around", retention_ms=" 5000 "),
        "with a retention below local retention": topic("new", max_message_bytes="-1"),
    }
    for what, wanted in bad.items():
        yield from ask(f"a topic {what}", create(wanted, validate_only=True), *_CREATE)
    yield from ask("a topic named twice", create(topic("twice"), topic("twice", 3)), *_CREATE)
    yield from ask("one good topic and one bad", create(topic("one-good"), topic("one bad")), 7)
    yield from known("one-good")
    yield from ask("no topic", create(), *_CREATE)


def _made() -> Script:
    yield from ask("a topic with a dot", create(topic("dot.and_line")), 7)
    yield from ask("a topic that collides with it", create(topic("dot_and.line")), *_CREATE)
    yield from ask("a topic of the default size", create(topic("default-size", -1, -1)), 5)
    yield from known("default-size", 2)
    yield from ask("a topic that is assigned", create(topic("assigned", -1, -1, [(1, [1]), (0, [1])])), 7)
    yield from known("assigned", 2)
    settings = create(topic("has-settings", 1, 1, retention_ms="1000", cleanup_policy="compact,delete"))
    yield from ask("a topic with settings", settings, 7)
    yield from ask("a topic whose names are reserved", create(topic("__consumer_offsets", 1, 1)), *_CREATE)


def _partitions() -> Script:
    versions = key_versions(CreatePartitionsRequest)

    def more(
        count: int, assignments: Sequence[Sequence[int]] | None = None, *names: str, checked: bool = False
    ) -> CreatePartitionsRequest:
        given = (
            None
            if assignments is None
            else tuple(CreatePartitionsAssignment(broker_ids=tuple(brokers)) for brokers in assignments)
        )
        wanted = tuple(CreatePartitionsTopic(name=n, count=count, assignments=given) for n in names or (TOPIC,))
        return CreatePartitionsRequest(topics=wanted, timeout_ms=LIMIT_MS, validate_only=checked)

    yield from ask("more partitions, only checked", more(4, checked=True), *every_version(CreatePartitionsRequest))
    for count in (2, 1, 0, -1):
        yield from ask(f"{count} partitions instead of 2", more(count), *versions)
    bad: dict[str, Sequence[Sequence[int]]] = {
        "none at all": [],
        "too few": [[1]],
        "too many": [[1], [1], [1]],
        "a broker that is not there": [[1], [7]],
        "a broker twice": [[1, 1], [1]],
        "nobody": [[1], []],
        "different factors": [[1], [1, 2]],
        "broker -1": [[1], [-1]],
    }
    for what, assignments in bad.items():
        yield from ask(f"more partitions, assigned to {what}", more(4, assignments, checked=True), *versions)
    yield from ask("more partitions of an unknown topic", more(4, None, "nowhere"), *versions)
    yield from ask("more partitions of a topic with an invalid name", more(4, None, "no/such"), *versions)
    yield from ask("more partitions of a topic named twice", more(4, None, TOPIC, TOPIC), *versions)
    yield from ask("more partitions of no topic", CreatePartitionsRequest(topics=(), timeout_ms=0, validate_only=False))
    yield from ask("more partitions", more(3), 3)
    yield from known(TOPIC, 3)
    yield from ask("more partitions, assigned", more(4, [[1]]), 3)
    yield from known(TOPIC, 4)


def delete(*names: str) -> DeleteTopicsRequest:
    """DeleteTopics in the forms of all versions."""
    states = tuple(DeleteTopicState(name=name) for name in names)
    return DeleteTopicsRequest(topics=states, topic_names=names, timeout_ms=LIMIT_MS)


def _deleted() -> Script:
    versions = key_versions(DeleteTopicsRequest)
    yield from ask("an unknown topic is deleted", delete("nowhere"), *every_version(DeleteTopicsRequest))
    yield from ask("a topic with an invalid name is deleted", delete("no/such"), *versions)
    yield from ask("a topic is deleted twice at once", delete("default-size", "default-size"), *versions)
    yield from ask("no topic is deleted", delete(), *versions)
    by_id = {
        "an unknown id": DeleteTopicState(topic_id=b"no such topic id"),
        "no id and no name": DeleteTopicState(topic_id=ZERO_UUID),
        "an id and a name": DeleteTopicState(name="x", topic_id=b"no such topic id"),
    }
    for what, state in by_id.items():
        yield from ask(f"a topic of {what} is deleted", DeleteTopicsRequest(topics=(state,), timeout_ms=LIMIT_MS), 6)
    yield from ask("a topic is deleted", delete("has-settings"), 5)
    yield from gone("has-settings")
    yield from ask("a topic is deleted again", delete("has-settings"), *versions)
    yield from ask("a topic is deleted by its id", _by_id("assigned"), 6)
    yield from gone("assigned")


def _by_id(name: str) -> Any:
    def build(answers: Answers) -> DeleteTopicsRequest:
        states = (DeleteTopicState(topic_id=answers.topic_ids[name]),)
        return DeleteTopicsRequest(topics=states, timeout_ms=LIMIT_MS)

    return build
