"""The outcome of changes of settings, and its records (pure). Codes are Kafka's: 42 for a broker, else 40.

For a broker's settings Kafka answers with 42 (KAFKA-13609), except for words added to a setting that is not a list, and
for `min.insync.replicas` of one broker. Tailrace does the same. The changes of partitions that follow: `consequences`.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Final, NamedTuple

from tailrace.metadata.commands import AlterConfigs, ConfigChange, ConfigOperation, ConfigsAltered, ResourceChanges
from tailrace.metadata.deciding.state_changes import (
    change_record,
    with_in_sync,
)
from tailrace.metadata.image import ALL_BROKERS, ClusterImage, ConfigResource, ResourceType, TopicImage
from tailrace.metadata.image_draft import ImageCircumstances
from tailrace.metadata.records.kinds import MetadataRecord
from tailrace.metadata.records.topics import ConfigRecord
from tailrace.metadata.replay import apply_all
from tailrace.metadata.views import view_refusal
from tailrace.model.errors import ErrorCode, KafkaError
from tailrace.model.ids import NO_LEADER, BrokerId
from tailrace.model.machines import Decision
from tailrace.model.partitions import METADATA_TOPIC, PartitionState, topic_name_fault
from tailrace.model.resource_settings import (
    SETTINGS_OF_CLIENT_METRICS,
    SETTINGS_OF_GROUPS,
    check_of_client_metrics,
    check_of_groups,
)
from tailrace.model.settings import Setting, SettingType, Table, attribute_name, current_name, find
from tailrace.model.topic_config import TOPIC_SETTINGS, TopicConfig

_LONGEST_BROKER_ID = 10
"""The most digits of an int32."""


_LONGEST_NAME = 1_000
_MOST_NAMED = 10_000
"""The most groups with settings, and the most subscriptions to client metrics: each costs memory on every node."""


class _Named(NamedTuple):
    """A kind of resource that exists only by its settings."""

    what: str
    settings: Table
    check: Callable[[Mapping[str, str]], None]


_NAMED: Mapping[int, _Named] = {
    ResourceType.GROUP: _Named("a group", SETTINGS_OF_GROUPS, check_of_groups),
    ResourceType.CLIENT_METRICS: _Named(
        "a subscription to client metrics", SETTINGS_OF_CLIENT_METRICS, check_of_client_metrics
    ),
}


class ConfigChanges:
    """The decision on an AlterConfigs command."""

    def __init__(
        self, image: ClusterImage, *, topic_defaults: TopicConfig, broker_settings: Table, max_frame_bytes: int
    ) -> None:
        """`max_frame_bytes` is socket.request.max.bytes."""
        self._image = image
        self._max_frame_bytes = max_frame_bytes
        self._topic_defaults = topic_defaults
        self._broker_settings = broker_settings
        self._named_counts: Counter[int] | None = None
        """The number of resources with settings for each type, resources of this command included; None until the first
        new resource."""

    def decide(self, command: AlterConfigs) -> Decision[MetadataRecord, ConfigsAltered]:
        """Records of the settings that change, and an outcome per resource: either every change of a resource is made,
        or none."""
        times_named = Counter(changes.resource for changes in command.resources)
        records: list[ConfigRecord] = []
        errors: list[KafkaError | None] = []
        for changes in command.resources:
            try:
                if times_named[changes.resource] > 1:
                    raise _bad_request("a resource is named twice in one request")
                records += self._records(changes)
            except KafkaError as refusal:
                errors.append(refusal)
            else:
                errors.append(None)
        response = ConfigsAltered(errors=tuple(errors))
        if command.validate_only:
            return Decision(records=(), response=response)
        return Decision(records=(*records, *consequences(self._image, records)), response=response)

    def _records(self, changes: ResourceChanges) -> list[ConfigRecord]:
        resource = changes.resource
        changes = _by_current_names(changes)
        _check_form(changes)
        if resource.type == ResourceType.TOPIC:
            self._check_topic(resource.name)
        elif resource.type == ResourceType.BROKER:
            self._check_broker(resource.name)
        elif resource.type in _NAMED:
            self._check_named(resource)
        else:
            raise _bad_request(
                f"resources of type {resource.type} have no settings here; topics (2), brokers (4), client metrics (16)"
                " and groups (32) do"
            )
        before = self._image.overrides(resource)
        after = self._stated(resource, before, self._after(changes, before))
        if resource.type in _NAMED and bool(before) != bool(after):
            self._count(resource.type, is_new=not before)
        names = dict.fromkeys((*before, *after))
        return [
            ConfigRecord(resource_type=resource.type, resource_name=resource.name, name=name, value=after.get(name))
            for name in names
            if before.get(name) != after.get(name)
        ]

    def _check_topic(self, name: str) -> None:
        fault = topic_name_fault(name)
        if fault is not None:
            raise KafkaError(ErrorCode.INVALID_TOPIC_EXCEPTION, fault)
        if name == METADATA_TOPIC:
            raise KafkaError(ErrorCode.POLICY_VIOLATION, f"the settings of {METADATA_TOPIC} can only be read (KIP-630)")
        if name not in self._image.topics:
            raise view_refusal(self._image, name, ErrorCode.POLICY_VIOLATION) or KafkaError(
                ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"there is no topic {name!r}"
            )

    def _check_broker(self, name: str) -> None:
        if not name:
            return
        if not (name.isascii() and name.isdecimal() and len(name) <= _LONGEST_BROKER_ID and str(int(name)) == name):
            raise _bad_request(f"a broker is named by its number, or by nothing for all of them, not {name!r}")
        if BrokerId(int(name)) not in self._image.brokers:
            raise KafkaError(ErrorCode.BROKER_ID_NOT_REGISTERED, f"broker {name} is not registered")

    def _check_named(self, resource: ConfigResource) -> None:
        """Check the name of a group, or of a subscription to client metrics, which exists as long as its settings."""
        if not resource.name:
            raise _bad_request(f"{_NAMED[resource.type].what} needs a name: there are no settings for all of them")
        if len(resource.name) > _LONGEST_NAME:
            raise _bad_request(f"a name of {len(resource.name)} characters is more than {_LONGEST_NAME}")

    def _count(self, kind: int, *, is_new: bool) -> None:
        """Count a named resource that gets its first setting, or loses its last setting. Raises KafkaError
        POLICY_VIOLATION (44)."""
        if self._named_counts is None:
            # The resources are counted once per command: there may be thousands, and a command may name thousands more.
            self._named_counts = Counter(resource.type for resource in self._image.configs)
        if is_new and self._named_counts[kind] >= _MOST_NAMED:
            raise KafkaError(
                ErrorCode.POLICY_VIOLATION, f"there are settings for {_MOST_NAMED} of these already; delete some"
            )
        self._named_counts[kind] += 1 if is_new else -1

    def _after(self, changes: ResourceChanges, before: Mapping[str, str]) -> dict[str, str]:
        after = {} if changes.replaces_all else dict(before)
        for change in changes.changes:
            match change.operation:
                case ConfigOperation.SET:
                    assert change.value is not None
                    after[change.name] = change.value
                case ConfigOperation.DELETE:
                    after.pop(change.name, None)
                case ConfigOperation.APPEND | ConfigOperation.SUBTRACT:
                    after[change.name] = self._list_after(changes.resource, change, after.get(change.name))
        return after

    def _list_after(self, resource: ConfigResource, change: ConfigChange, present: str | None) -> str:
        is_topic = resource.type == ResourceType.TOPIC
        setting = self._setting(resource, change.name)
        if setting.type is not SettingType.LIST:
            raise KafkaError(
                ErrorCode.INVALID_CONFIG, f"{change.name} is no list: nothing can be added to it or taken from it"
            )
        if present is None:
            default = getattr(self._topic_defaults, attribute_name(change.name)) if is_topic else setting.default
            present = setting.format(default) or ""
        assert change.value is not None
        words, wanted = _words(present), dict.fromkeys(_words(change.value))
        if change.operation is ConfigOperation.APPEND:
            return ",".join(dict.fromkeys((*words, *wanted)))
        return ",".join(word for word in words if word not in wanted)

    def _stated(
        self, resource: ConfigResource, before: Mapping[str, str], after: Mapping[str, str]
    ) -> Mapping[str, str]:
        """The settings in the form of the log.

        Settings that do not change are not checked again: an old value that a stricter release refuses must not block
        other changes.
        """
        stated = {
            name: value if before.get(name) == value else self._stated_value(resource, name, value)
            for name, value in after.items()
        }
        if resource.type == ResourceType.TOPIC:
            self._topic_defaults.with_overrides(stated)
        elif resource.type in _NAMED:
            _NAMED[resource.type].check(stated)
        return stated

    def _stated_value(self, resource: ConfigResource, name: str, value: str) -> str:
        setting = self._setting(resource, name)
        is_broker = resource.type == ResourceType.BROKER
        if is_broker and resource.name and name == MIN_IN_SYNC:
            raise KafkaError(
                ErrorCode.INVALID_CONFIG,
                f"{name} cannot be set for one broker: the eligible leaders follow from it (KIP-966), and have to"
                " be the same for all; set it for the topic, or for all brokers",
            )
        try:
            stated = stated_value(setting, value)
            refuse_uncarried(name, stated, self._max_frame_bytes)
            return stated
        except KafkaError as fault:
            if not is_broker:
                raise
            raise _bad_request(fault.detail) from None

    def _setting(self, resource: ConfigResource, name: str) -> Setting:
        if resource.type == ResourceType.TOPIC:
            return find(TOPIC_SETTINGS, name, kind="topic")
        if resource.type in _NAMED:
            return find(_NAMED[resource.type].settings, name)
        try:
            setting = find(self._broker_settings, name)
        except KafkaError as fault:
            raise _bad_request(fault.detail) from None
        if not setting.dynamic:
            raise _bad_request(f"{name} cannot be changed while the broker runs; set it in its configuration")
        return setting


def _by_current_names(changes: ResourceChanges) -> ResourceChanges:
    named = tuple(replace(change, name=current_name(change.name)) for change in changes.changes)
    return replace(changes, changes=named)


def _check_form(changes: ResourceChanges) -> None:
    names = Counter(change.name for change in changes.changes)
    twice = [name for name, count in names.items() if count > 1]
    if twice:
        raise _bad_request(f"{', '.join(map(repr, twice[:5]))}: a setting is named twice")
    nothing = [c.name for c in changes.changes if c.value is None and c.operation is not ConfigOperation.DELETE]
    if nothing:
        raise _bad_request(f"{', '.join(map(repr, nothing[:5]))}: null is not a value")


def _words(text: str) -> Iterable[str]:
    return [word.strip() for word in text.split(",") if word.strip()]


def _bad_request(detail: str) -> KafkaError:
    return KafkaError(ErrorCode.INVALID_REQUEST, detail)


MIN_IN_SYNC: Final = "min.insync.replicas"
UNCLEAN_ELECTION: Final = "unclean.leader.election.enable"
DECISIVE: Final = (MIN_IN_SYNC, UNCLEAN_ELECTION)
"""The settings that decide on leaders: the controller's decisions and the derived changes of all nodes."""


def consequences(before: ClusterImage, settings: Sequence[ConfigRecord]) -> Iterator[MetadataRecord]:
    """A record for each partition whose state changes with these settings.

    1. `min.insync.replicas` falls to the number of replicas in sync: the high watermark rises again, and passes records
       that an eligible replica out of sync does not have. So the partition has no eligible replica any more (KIP-966).
       Kafka forgets the eligible leaders of all these partitions also when the setting rises; then a partition without
       a leader could only get a leader by an unclean election.
    2. `unclean.leader.election.enable` is true: a partition without a leader gets a leader, if any replica is alive.
       Kafka looks for such partitions from time to time.
    """
    decisive = [record for record in settings if record.name in DECISIVE]
    if not decisive:
        return
    image, _ = apply_all(before, settings)
    circumstances = ImageCircumstances(image)
    for topic in _concerned(image, decisive):
        least = circumstances.min_in_sync_replicas(topic.topic_id)
        is_unclean = circumstances.allows_unclean_election(topic.topic_id)
        for number, state in topic.partitions.items():
            after = state
            if state.leader != NO_LEADER:
                after = _led(state, least)
            elif is_unclean:
                after = _elected(image, state)
            if after is not state:
                yield change_record(number, state, after)


def _concerned(image: ClusterImage, settings: Iterable[ConfigRecord]) -> Iterable[TopicImage]:
    resources = {ConfigResource(record.resource_type, record.resource_name) for record in settings}
    if ALL_BROKERS in resources:
        return image.topics.values()
    return [image.topics[name] for kind, name in sorted(resources) if kind == ResourceType.TOPIC]


def _led(state: PartitionState, min_in_sync: int) -> PartitionState:
    has_enough = len(state.in_sync_replicas) >= min(min_in_sync, len(state.replicas))
    if has_enough and (state.eligible_leader_replicas or state.last_known_leaders):
        return replace(state, eligible_leader_replicas=(), last_known_leaders=())
    return state


def _elected(image: ClusterImage, state: PartitionState) -> PartitionState:
    """The state after an unclean election, as an administrator can request it (`elections`)."""
    is_alive = ImageCircumstances(image).is_alive
    alive = tuple(replica for replica in state.in_sync_replicas if is_alive(replica))
    after = with_in_sync(image, state, alive)
    return state if after.leader == NO_LEADER else after


_SIZES_OF_BATCHES: Final = ("max.message.bytes", "message.max.bytes")
"""The name of the setting for a topic, and the name for a broker."""


def refuse_uncarried(name: str, text: str, max_frame_bytes: int) -> None:
    """Raise KafkaError(INVALID_CONFIG) for a size of batches that no Produce request can carry.

    Kafka accepts the setting, and then closes the connection of each producer that makes use of the setting.
    """
    if name in _SIZES_OF_BATCHES and int(text) > max_frame_bytes:
        raise KafkaError(
            ErrorCode.INVALID_CONFIG,
            f"{name}={text}: no request can carry such a batch, since socket.request.max.bytes is {max_frame_bytes};"
            f" say at most {max_frame_bytes}, or first raise socket.request.max.bytes in the configuration of every"
            " broker and controller",
        )


LONGEST_VALUE: Final = 2**15 - 1
"""The most characters of a value, as in Kafka. A value takes memory on every node as long as it is set."""


def stated_value(setting: Setting, text: str) -> str:
    """The text for the log. Raises KafkaError(INVALID_CONFIG) for an illegal value.

    Replicas derive changes from the exact texts in the log (`circumstances`): ` TRUE ` is legal and means `true`, so
    the log gets `true`.
    """
    if len(text) > LONGEST_VALUE:
        raise KafkaError(
            ErrorCode.INVALID_CONFIG, f"{setting.name}: {len(text)} characters are more than {LONGEST_VALUE}"
        )
    stated = setting.format(setting.parse(text))
    return text if stated is None else stated
