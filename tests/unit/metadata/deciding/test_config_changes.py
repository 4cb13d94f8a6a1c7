"""Bounds of a request that changes settings: the work of the controller, and the resources that may have settings."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import pytest

from tailrace.metadata.commands import ConfigChange, ConfigOperation, ConfigsAltered, ResourceChanges
from tailrace.metadata.deciding import config_changes
from tailrace.metadata.deciding.config_changes import ConfigChanges
from tailrace.metadata.image import ClusterImage, ConfigResource, ResourceType
from tailrace.metadata.records.kinds import MetadataRecord
from tailrace.metadata.records.topics import ConfigRecord
from tailrace.model.errors import ErrorCode, KafkaError
from tailrace.model.machines import Decision
from tailrace.model.topic_config import TopicConfig
from testkit.quorum.controller_commands import alter_configs

_SETTING = "consumer.session.timeout.ms"


class _Counted(dict[ConfigResource, Mapping[str, str]]):
    """Settings that count how many of them are walked past."""

    walked = 0

    def __iter__(self) -> Iterator[ConfigResource]:
        for resource in super().__iter__():
            self.walked += 1
            yield resource

    def keys(self) -> Any:
        raise NotImplementedError

    values = items = keys


def _group(name: str, *, operation: ConfigOperation = ConfigOperation.SET) -> ResourceChanges:
    change = ConfigChange(
        name=_SETTING, operation=operation, value="50000" if operation is ConfigOperation.SET else None
    )
    return ResourceChanges(resource=ConfigResource(ResourceType.GROUP, name), changes=(change,))


def _subscription(name: str) -> ResourceChanges:
    change = ConfigChange(name="interval.ms", value="1000")
    return ResourceChanges(resource=ConfigResource(ResourceType.CLIENT_METRICS, name), changes=(change,))


def _known(count: int) -> _Counted:
    return _Counted({ConfigResource(ResourceType.GROUP, f"known{n}"): {_SETTING: "50000"} for n in range(count)})


def _decide(
    configs: Mapping[ConfigResource, Mapping[str, str]], changes: Iterable[ResourceChanges]
) -> tuple[list[ErrorCode], Decision[MetadataRecord, ConfigsAltered]]:
    decider = ConfigChanges(
        ClusterImage(configs=configs), topic_defaults=TopicConfig(), broker_settings={}, max_frame_bytes=1_000_000
    )
    decision = decider.decide(alter_configs(*changes))
    return [ErrorCode.NONE if each is None else each.code for each in decision.response.errors], decision


def test_resources_with_settings_are_counted_once_per_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(config_changes, "_MOST_NAMED", 50)
    known = _known(50)
    codes, _ = _decide(known, [*(_group(f"new{n}") for n in range(40)), *(_subscription(f"new{n}") for n in range(40))])
    assert codes == [ErrorCode.POLICY_VIOLATION] * 40 + [ErrorCode.NONE] * 40
    assert known.walked <= 50, "other requests wait while the settings of all groups are walked through again"


def test_the_resources_of_the_request_itself_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(config_changes, "_MOST_NAMED", 5)
    codes, decision = _decide(_known(3), [_group("a"), _group("known0"), _group("b"), _group("c"), _subscription("d")])
    refused = ErrorCode.POLICY_VIOLATION
    assert codes == [ErrorCode.NONE, ErrorCode.NONE, ErrorCode.NONE, refused, ErrorCode.NONE]
    made = {record.resource_name for record in decision.records if isinstance(record, ConfigRecord)}
    assert made == {"a", "b", "d"}


def test_a_size_of_batches_beyond_the_frame_is_refused_with_the_way_out() -> None:
    config_changes.refuse_uncarried("max.message.bytes", "100", 100)
    config_changes.refuse_uncarried("segment.bytes", "101", 100)
    with pytest.raises(KafkaError, match=r"message.max.bytes=101: .* raise socket.request.max.bytes"):
        config_changes.refuse_uncarried("message.max.bytes", "101", 100)


def test_refused_and_deleted_settings_of_a_request_make_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(config_changes, "_MOST_NAMED", 3)
    illegal = ResourceChanges(
        resource=ConfigResource(ResourceType.GROUP, "illegal"), changes=(ConfigChange(name=_SETTING, value="1"),)
    )
    taken_back = _group("known1", operation=ConfigOperation.DELETE)
    never_there = _group("never", operation=ConfigOperation.DELETE)
    codes, _ = _decide(_known(3), [never_there, taken_back, illegal, _group("a"), _group("b")])
    assert codes == [
        ErrorCode.NONE,
        ErrorCode.NONE,
        ErrorCode.INVALID_CONFIG,
        ErrorCode.NONE,
        ErrorCode.POLICY_VIOLATION,
    ]


def test_words_are_taken_from_a_long_list_in_one_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    compared = 0

    class Word(str):
        __slots__ = ()
        __hash__ = str.__hash__

        def __eq__(self, other: object) -> bool:
            nonlocal compared
            compared += 1
            return str.__eq__(self, other)

    monkeypatch.setattr(config_changes, "_words", lambda text: [Word(word) for word in text.split(",")])
    present, wanted = [f"a{n}" for n in range(300)], [f"b{n}" for n in range(300)]
    subscription = ConfigResource(ResourceType.CLIENT_METRICS, "s")
    change = ConfigChange(name="metrics", operation=ConfigOperation.SUBTRACT, value=",".join([*wanted, *present[:-1]]))
    codes, decision = _decide(
        {subscription: {"metrics": ",".join(present)}}, [ResourceChanges(resource=subscription, changes=(change,))]
    )
    assert codes == [ErrorCode.NONE]
    assert [record.value for record in decision.records if isinstance(record, ConfigRecord)] == ["a299"]
    assert compared <= 3_000, "every word was held against every other"
