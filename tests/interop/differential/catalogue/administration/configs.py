"""DescribeConfigs, AlterConfigs and IncrementalAlterConfigs of topics and brokers."""

from interop.differential.catalogue.preparation import created
from interop.differential.script import Script, ask, every_version, key_versions
from tailrace.protocol.messages.configs import (
    AlterableConfig,
    AlterConfigsRequest,
    AlterConfigsResource,
    DescribeConfigsRequest,
    DescribeConfigsResource,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResource,
    IncrementallyAlterableConfig,
)

TOPIC = "configs"
TOPIC_TYPE, BROKER_TYPE = 2, 4
_SET, _DELETE, _APPEND, _SUBTRACT = range(4)
_DESCRIBE = key_versions(DescribeConfigsRequest)
_ALTER = key_versions(AlterConfigsRequest)
_BROKER_KEYS = (
    *("log.retention.ms", "log.segment.bytes", "message.max.bytes", "compression.type", "num.partitions", "node.id"),
    *("auto.create.topics.enable", "group.min.session.timeout.ms", "no.such.setting"),
    *("log.cleanup.policy", "delete.topic.enable", "log.index.interval.bytes", "log.roll.ms"),
)


def configs() -> Script:
    yield from created(TOPIC, 1, {"retention.ms": "5000", "cleanup.policy": "compact"})
    yield from _described()
    yield from _incremental()
    yield from _replaced()
    yield from _brokers()


def describe(
    name: str = TOPIC, kind: int = TOPIC_TYPE, keys: tuple[str, ...] | None = None, *, synonyms: bool = False
) -> DescribeConfigsRequest:
    resource = DescribeConfigsResource(resource_type=kind, resource_name=name, configuration_keys=keys)
    return DescribeConfigsRequest(resources=(resource,), include_synonyms=synonyms, include_documentation=True)


def change(
    *changes: tuple[str, int, str | None], name: str = TOPIC, kind: int = TOPIC_TYPE, checked: bool = False
) -> IncrementalAlterConfigsRequest:
    configs = tuple(IncrementallyAlterableConfig(name=key, config_operation=op, value=v) for key, op, v in changes)
    resource = IncrementalAlterConfigsResource(resource_type=kind, resource_name=name, configs=configs)
    return IncrementalAlterConfigsRequest(resources=(resource,), validate_only=checked)


def replace_all(
    *settings: tuple[str, str | None], name: str = TOPIC, kind: int = TOPIC_TYPE, checked: bool = False
) -> AlterConfigsRequest:
    configs = tuple(AlterableConfig(name=key, value=value) for key, value in settings)
    resource = AlterConfigsResource(resource_type=kind, resource_name=name, configs=configs)
    return AlterConfigsRequest(resources=(resource,), validate_only=checked)


def _described() -> Script:
    yield from ask("settings of a topic", describe(), *every_version(DescribeConfigsRequest))
    yield from ask("settings of a topic with synonyms", describe(synonyms=True), 1, 3, 4)
    yield from ask("two settings of a topic", describe(keys=("retention.ms", "segment.bytes")), *_DESCRIBE)
    yield from ask("a setting that is none", describe(keys=("no.such", "retention.ms")), *_DESCRIBE)
    yield from ask("no settings of a topic", describe(keys=()), *_DESCRIBE)
    yield from ask("settings of an unknown topic", describe("nowhere"), *_DESCRIBE)
    for name in ("no/such", "", ".."):
        yield from ask(f"settings of a topic named {name!r}", describe(name), *_DESCRIBE)
    for kind in (0, 1, 3, 5, 99, -1):
        yield from ask(f"settings of resource type {kind}", describe("1", kind), 1, 4)
    for kind, name, key in ((8, "1", "root"), (16, "any", "metrics"), (32, "any", "consumer.session.timeout.ms")):
        yield from ask(f"settings of resource type {kind}", describe(name, kind, (key,)), *_DESCRIBE)
        value = {8: "INFO", 16: "", 32: "45000"}[kind]
        yield from ask(
            f"a change of resource type {kind}", change((key, _SET, value), name=name, kind=kind, checked=True), 0, 1
        )
    yield from ask("settings of broker 1", describe("1", BROKER_TYPE, _BROKER_KEYS), *_DESCRIBE)
    yield from ask("settings of broker 1 with synonyms", describe("1", BROKER_TYPE, _BROKER_KEYS, synonyms=True), 1, 4)
    yield from ask("settings of all brokers", describe("", BROKER_TYPE), *_DESCRIBE)
    for name in ("2", "-1", "x", "1.5", "99999999999"):
        yield from ask(f"settings of broker {name!r}", describe(name, BROKER_TYPE), 1, 4)
    yield from ask("settings of nothing", DescribeConfigsRequest(resources=()), *_DESCRIBE)


def _incremental() -> Script:
    bad: dict[str, tuple[str, int, str | None]] = {
        "an unknown setting": ("no.such", _SET, "1"),
        "an unknown setting taken back": ("no.such", _DELETE, None),
        "a bad number": ("retention.ms", _SET, "soon"),
        "a number out of bounds": ("segment.bytes", _SET, "1"),
        "a null value": ("retention.ms", _SET, None),
        "an empty value": ("retention.ms", _SET, ""),
        "a bad policy": ("cleanup.policy", _SET, "sometimes"),
        "a bad codec": ("compression.type", _SET, "best"),
        "an operation that is none": ("retention.ms", 4, "1"),
        "operation -1": ("retention.ms", -1, "1"),
        "appending to a number": ("retention.ms", _APPEND, "1"),
        "taking from a number": ("retention.ms", _SUBTRACT, "1"),
        "appending a bad policy": ("cleanup.policy", _APPEND, "sometimes"),
        "appending null": ("cleanup.policy", _APPEND, None),
        "an empty name": ("", _SET, "1"),
        "a broker's setting": ("num.partitions", _SET, "3"),
    }
    for what, step in bad.items():
        yield from ask(f"a change: {what}", change(step, checked=True), 0, 1)
    good: dict[str, tuple[str, int, str | None]] = {
        "a number is set": ("retention.ms", _SET, "7000"),
        "a number is set again": ("retention.ms", _SET, "7000"),
        "a policy is appended": ("cleanup.policy", _APPEND, "delete"),
        "a policy is appended again": ("cleanup.policy", _APPEND, "delete"),
        "a policy is taken away": ("cleanup.policy", _SUBTRACT, "compact"),
        "a policy is taken away that is not there": ("cleanup.policy", _SUBTRACT, "compact"),
        "the last policy is taken away": ("cleanup.policy", _SUBTRACT, "delete"),
        "a policy is set": ("cleanup.policy", _SET, "compact,delete"),
        "a setting is taken back": ("retention.ms", _DELETE, None),
        "a setting is taken back again": ("retention.ms", _DELETE, "5"),
        "a list that is not set is appended to": ("compression.type", _SET, "zstd"),
    }
    for what, step in good.items():
        yield from ask(f"a change is only checked: {what}", change(step, checked=True), 0, 1)
        yield from ask(f"a change: {what}", change(step), 1)
        yield from ask(f"settings after: {what}", describe(keys=("retention.ms", "cleanup.policy")), 4)
    yield from ask("a setting changed twice", change(("retention.ms", 0, "1"), ("retention.ms", 0, "2")), 0, 1)
    yield from ask("a good change and a bad one", change(("retention.ms", 0, "1"), ("segment.bytes", 0, "x")), 0, 1)
    yield from ask("no change", change(), 0, 1)
    yield from ask("a change of an unknown topic", change(("retention.ms", 0, "1"), name="nowhere"), 0, 1)
    yield from ask("a change of a topic with an invalid name", change(("retention.ms", 0, "1"), name="no/such"), 0, 1)
    for kind in (0, 1, 3, 99, -1):
        yield from ask(f"a change of resource type {kind}", change(("retention.ms", 0, "1"), kind=kind), 0, 1)
    yield from ask("a change of a topic named twice", _twice(), 0, 1)
    yield from ask("a change of a topic named twice, once with an operation that is none", _twice(operation=9), 0, 1)
    yield from ask("settings after all changes", describe(), 4)


def _twice(operation: int = 0) -> IncrementalAlterConfigsRequest:
    resources = (*change(("retention.ms", operation, "1")).resources, *change(("segment.ms", 0, "1")).resources)
    return IncrementalAlterConfigsRequest(resources=resources, validate_only=False)


def _replaced() -> Script:
    bad: dict[str, tuple[str, str | None]] = {
        "an unknown setting": ("no.such", "1"),
        "a bad number": ("retention.ms", "soon"),
        "a null value": ("retention.ms", None),
        "a bad policy": ("cleanup.policy", "sometimes"),
        "an empty name": ("", "1"),
    }
    for what, step in bad.items():
        yield from ask(f"a replacement: {what}", replace_all(step, checked=True), *_ALTER)
    yield from ask("a replacement is only checked", replace_all(("retention.ms", "9000"), checked=True), *_ALTER)
    yield from ask("a replacement", replace_all(("retention.ms", "9000"), ("segment.ms", "60000")), *_ALTER)
    yield from ask("settings after a replacement", describe(), 4)
    yield from ask(
        "a replacement names a setting twice", replace_all(("retention.ms", "1"), ("retention.ms", "2")), *_ALTER
    )
    yield from ask("a replacement by nothing", replace_all(), 2)
    yield from ask("settings after a replacement by nothing", describe(), 4)
    yield from ask("a replacement of an unknown topic", replace_all(name="nowhere"), *_ALTER)
    for kind in (0, 1, 3, 99):
        yield from ask(f"a replacement of resource type {kind}", replace_all(kind=kind), *_ALTER)


def _brokers() -> Script:
    for name in ("1", ""):
        broker = {"name": name, "kind": BROKER_TYPE}
        who = f"broker {name!r}"
        good = (("log.index.interval.bytes", _SET, "5000"), ("message.max.bytes", _SET, "2000000"))
        yield from ask(f"a change of {who}", change(*good, **broker), 0, 1)  # type: ignore[arg-type]
        keys = ("log.index.interval.bytes", "message.max.bytes")
        yield from ask(f"settings of {who} after it", describe(name, BROKER_TYPE, keys, synonyms=True), 4)
        bad = {
            "a bad number": ("message.max.bytes", _SET, "much"),
            "a number out of bounds": ("message.max.bytes", _SET, "-5"),
            "a setting that is read only": ("node.id", _SET, "2"),
            "a topic's setting": ("retention.ms", _SET, "1"),
            "appending to a number": ("message.max.bytes", _APPEND, "1"),
        }
        for what, step in bad.items():
            yield from ask(f"a change of {who}: {what}", change(step, **broker, checked=True), 0, 1)  # type: ignore[arg-type]
        back = tuple((key, _DELETE, None) for key in keys)
        yield from ask(f"{who} as before", change(*back, **broker), 1)  # type: ignore[arg-type]
        yield from ask(f"settings of {who} as before", describe(name, BROKER_TYPE, keys, synonyms=True), 4)
    for name in ("2", "x", "-1"):
        yield from ask(f"a change of broker {name!r}", change(name=name, kind=BROKER_TYPE), 0, 1)
        yield from ask(f"a replacement of broker {name!r}", replace_all(name=name, kind=BROKER_TYPE), *_ALTER)
