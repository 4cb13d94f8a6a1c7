"""The controller alters settings of topics and brokers, as a table."""

from typing import Any

from scenarios.controller.decision_table import (
    ALL_BROKERS,
    OF_ORDERS,
    ONE,
    SET_RETENTION,
    WITH_ORDERS,
    ControllerScenario,
    check_decision,
    create,
    created,
    partition,
    random_id,
    refused,
    setting,
    table,
)
from tailrace.metadata.commands import (
    AlterConfigs,
    ConfigChange,
    ConfigOperation,
    ConfigsAltered,
    ResourceChanges,
    TopicsCreated,
    TopicSpec,
)
from tailrace.metadata.image import ConfigResource, ResourceType
from tailrace.metadata.records.topics import ConfigRecord, TopicRecord
from tailrace.model.errors import ErrorCode
from tailrace.model.topic_config import TopicConfig
from testkit.quorum.controller_commands import alter_configs
from testkit.quorum.controllers import controller_machine, topic_rules

BROKER_1 = ConfigResource(ResourceType.BROKER, "1")
ALTERED = ConfigsAltered(errors=(None,))


def set_to(name: str, value: str) -> ConfigChange:
    return ConfigChange(name=name, value=value)


SEGMENT_AT_5 = set_to("segment.ms", "5")


def alter(
    *changes: ConfigChange,
    resource: ConfigResource = OF_ORDERS,
    replaces_all: bool = False,
    validate_only: bool = False,
) -> AlterConfigs:
    resources = (ResourceChanges(resource=resource, changes=changes, replaces_all=replaces_all),)
    return alter_configs(*resources, validate_only=validate_only)


def unaltered(
    name: str, error: ErrorCode, *changes: ConfigChange, resource: ConfigResource = OF_ORDERS, **given: Any
) -> ControllerScenario:
    return ControllerScenario(
        name=name, when=alter(*changes, resource=resource), error=error, **{"given": WITH_ORDERS, **given}
    )


CONFIGS = [
    ControllerScenario(
        name="only settings that change are written",
        given=[*WITH_ORDERS, SET_RETENTION],
        when=alter(set_to("retention.ms", "5"), set_to("segment.ms", "9")),
        then=[setting("segment.ms", "9")],
        response=ALTERED,
    ),
    ControllerScenario(
        name="a setting is taken back",
        given=[*WITH_ORDERS, SET_RETENTION],
        when=alter(ConfigChange(name="retention.ms", operation=ConfigOperation.DELETE)),
        then=[setting("retention.ms", None)],
        response=ALTERED,
    ),
    ControllerScenario(
        name="a setting that was never given is taken back",
        given=WITH_ORDERS,
        when=alter(ConfigChange(name="retention.ms", operation=ConfigOperation.DELETE)),
        response=ALTERED,
    ),
    ControllerScenario(
        name="settings that a replacement does not name are deleted",
        given=[*WITH_ORDERS, SET_RETENTION],
        when=alter(set_to("segment.ms", "9"), replaces_all=True),
        then=[setting("retention.ms", None), setting("segment.ms", "9")],
        response=ALTERED,
    ),
    ControllerScenario(
        name="a replacement that names what is there changes nothing",
        given=[*WITH_ORDERS, SET_RETENTION],
        when=alter(set_to("retention.ms", "5"), replaces_all=True),
        response=ALTERED,
    ),
    ControllerScenario(
        name="settings are only validated",
        given=WITH_ORDERS,
        when=alter(set_to("segment.ms", "9"), validate_only=True),
        response=ALTERED,
    ),
    ControllerScenario(
        name="words are added to the default of a list, each once",
        given=WITH_ORDERS,
        when=alter(ConfigChange(name="cleanup.policy", operation=ConfigOperation.APPEND, value="compact,delete")),
        then=[setting("cleanup.policy", "delete,compact")],
        response=ALTERED,
    ),
    ControllerScenario(
        name="words are added to the list in force on all brokers",
        given=WITH_ORDERS,
        rules=topic_rules(config=TopicConfig(cleanup_policy=("compact",))),
        when=alter(ConfigChange(name="cleanup.policy", operation=ConfigOperation.APPEND, value="delete")),
        then=[setting("cleanup.policy", "compact,delete")],
        response=ALTERED,
    ),
    ControllerScenario(
        name="words are taken from a list",
        given=[*WITH_ORDERS, setting("cleanup.policy", "delete,compact")],
        when=alter(ConfigChange(name="cleanup.policy", operation=ConfigOperation.SUBTRACT, value="delete")),
        then=[setting("cleanup.policy", "compact")],
        response=ALTERED,
    ),
    ControllerScenario(
        name="a setting of all brokers is altered",
        given=ONE,
        when=alter(set_to("log.retention.ms", "5"), resource=ALL_BROKERS),
        then=[ConfigRecord(resource_type=4, resource_name="", name="log.retention.ms", value="5")],
        response=ALTERED,
    ),
    ControllerScenario(
        name="a setting of a broker is altered",
        given=ONE,
        when=alter(set_to("log.retention.ms", "5"), resource=BROKER_1),
        then=[ConfigRecord(resource_type=4, resource_name="1", name="log.retention.ms", value="5")],
        response=ALTERED,
    ),
    ControllerScenario(
        name="values are written down as Kafka writes them",
        given=WITH_ORDERS,
        when=alter(
            set_to("preallocate", " TRUE"), set_to("segment.ms", "+5"), set_to("cleanup.policy", "delete, compact")
        ),
        then=[setting("preallocate", "true"), setting("segment.ms", "5"), setting("cleanup.policy", "delete,compact")],
        response=ALTERED,
    ),
    ControllerScenario(
        name="values of a new topic are written down as Kafka writes them",
        given=ONE,
        when=create(TopicSpec(name="orders", configs=(("retention.ms", " 5 "),))),
        then=[TopicRecord(name="orders", topic_id=random_id(2)), SET_RETENTION, partition(random_id(2), 0, 1)],
        response=TopicsCreated(results=(created("orders", 2, overrides={"retention.ms": "5"}),)),
    ),
    unaltered("a value that is too long", ErrorCode.INVALID_CONFIG, set_to("cleanup.policy", "delete," * 5_000)),
    refused(
        "a value of a new topic that is too long",
        ErrorCode.INVALID_CONFIG,
        TopicSpec(name="x", configs=(("cleanup.policy", "delete," * 5_000),)),
    ),
    unaltered(
        "a batch that no request can carry",
        ErrorCode.INVALID_CONFIG,
        set_to("max.message.bytes", "1001"),
        rules=topic_rules(max_frame_bytes=1_000),
    ),
    unaltered(
        "a batch that no request can carry, for all topics",
        ErrorCode.INVALID_REQUEST,
        set_to("message.max.bytes", "1001"),
        resource=ALL_BROKERS,
        rules=topic_rules(max_frame_bytes=1_000),
    ),
    refused(
        "a new topic whose batches no request can carry",
        ErrorCode.INVALID_CONFIG,
        TopicSpec(name="x", configs=(("max.message.bytes", "1001"),)),
        rules=topic_rules(max_frame_bytes=1_000),
    ),
    unaltered("one illegal setting refuses all", ErrorCode.INVALID_CONFIG, SEGMENT_AT_5, set_to("retention.ms", "x")),
    unaltered("a setting that does not exist", ErrorCode.INVALID_CONFIG, set_to("retention.minutes", "5")),
    unaltered("a value outside its limits", ErrorCode.INVALID_CONFIG, set_to("min.insync.replicas", "0")),
    unaltered("a word that a list does not take", ErrorCode.INVALID_CONFIG, set_to("cleanup.policy", "delete,burn")),
    unaltered(
        "settings that contradict each other",
        ErrorCode.INVALID_CONFIG,
        set_to("min.compaction.lag.ms", "10"),
        set_to("max.compaction.lag.ms", "9"),
    ),
    unaltered(
        "words cannot be added to a number",
        ErrorCode.INVALID_CONFIG,
        ConfigChange(name="retention.ms", operation=ConfigOperation.APPEND, value="5"),
    ),
    unaltered("a setting named twice", ErrorCode.INVALID_REQUEST, SEGMENT_AT_5, SEGMENT_AT_5),
    unaltered("null for the value of a setting", ErrorCode.INVALID_REQUEST, ConfigChange(name="segment.ms")),
    unaltered("settings of a topic that is not there", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, given=ONE),
    unaltered(
        "settings of what cannot be a topic",
        ErrorCode.INVALID_TOPIC_EXCEPTION,
        SEGMENT_AT_5,
        resource=ConfigResource(ResourceType.TOPIC, "a/b"),
    ),
    unaltered(
        "settings of a resource without settings",
        ErrorCode.INVALID_REQUEST,
        SEGMENT_AT_5,
        resource=ConfigResource(ResourceType.BROKER_LOGGER, "1"),
    ),
    unaltered(
        "a broker's setting that cannot change while the broker runs",
        ErrorCode.INVALID_REQUEST,
        set_to("num.partitions", "5"),
        resource=BROKER_1,
    ),
    unaltered(
        "a broker's setting that does not exist", ErrorCode.INVALID_REQUEST, set_to("a.b", "5"), resource=BROKER_1
    ),
    unaltered(
        "a broker's setting outside its limits",
        ErrorCode.INVALID_REQUEST,
        set_to("log.retention.ms", "-2"),
        resource=ALL_BROKERS,
    ),
    unaltered(
        "settings of a broker that is not there",
        ErrorCode.BROKER_ID_NOT_REGISTERED,
        set_to("log.retention.ms", "5"),
        resource=ConfigResource(ResourceType.BROKER, "7"),
    ),
    unaltered(
        "settings of what cannot be a broker",
        ErrorCode.INVALID_REQUEST,
        set_to("log.retention.ms", "5"),
        resource=ConfigResource(ResourceType.BROKER, "01"),
    ),
]


def test_a_resource_whose_settings_a_request_names_twice_is_not_altered() -> None:
    machine = controller_machine()
    machine.apply_all(WITH_ORDERS)
    twice = ResourceChanges(resource=OF_ORDERS, changes=(SEGMENT_AT_5,))
    other = ResourceChanges(resource=ALL_BROKERS, changes=(set_to("log.roll.ms", "5"),))
    decision = machine.decide(alter_configs(twice, other, twice), 0)
    assert isinstance(decision.response, ConfigsAltered)
    codes = [None if error is None else error.code for error in decision.response.errors]
    assert codes == [ErrorCode.INVALID_REQUEST, None, ErrorCode.INVALID_REQUEST]
    assert list(decision.records) == [ConfigRecord(resource_type=4, resource_name="", name="log.roll.ms", value="5")]


@table(*CONFIGS)
def test_the_controller_alters_configs(scenario: ControllerScenario) -> None:
    check_decision(scenario)
