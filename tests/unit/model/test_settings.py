import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.model.errors import ErrorCode, KafkaError
from tailrace.model.settings import Setting, SettingType, find
from tailrace.model.topic_config import TOPIC_SETTINGS, TopicConfig


def test_a_topics_own_setting_wins_over_the_default() -> None:
    config = TopicConfig(retention_ms=5).with_overrides({"segment.bytes": "1024", "cleanup.policy": "compact,delete"})
    assert (config.segment_bytes, config.retention_ms) == (1024, 5)
    assert config.cleanup_policy == ("compact", "delete")
    assert config.is_compacted


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("retention.ms", "soon", "retention.ms"),
        ("retention.ms", "1_000", "whole number"),
        ("min.cleanable.dirty.ratio", "0.0_5", "must be a number"),
        ("retention.ms", "-2", "between -1 and"),
        ("segment.bytes", str(2**31), "between 14 and 2147483647"),
        ("cleanup.policy", "shred", "one of delete, compact"),
        ("leader.replication.throttled.replicas", "0:1,*", "PARTITION:BROKER"),
        ("follower.replication.throttled.replicas", "0", "PARTITION:BROKER"),
        ("follower.replication.throttled.replicas", "0:x", "PARTITION:BROKER"),
        ("preallocate", "yes", "true or false"),
        ("min.cleanable.dirty.ratio", "1.5", "between 0 and 1"),
    ],
)
def test_an_illegal_value_is_refused_with_its_limits(name: str, text: str, message: str) -> None:
    with pytest.raises(KafkaError, match=message) as refusal:
        TopicConfig().with_overrides({name: text})
    assert refusal.value.code == ErrorCode.INVALID_CONFIG


def test_an_unknown_setting_is_refused_with_the_nearest_name() -> None:
    with pytest.raises(KafkaError, match=r"did you mean retention\.ms\?"):
        find(TOPIC_SETTINGS, "retension.ms")


def test_a_sensitive_value_is_neither_shown_nor_quoted() -> None:
    secret = Setting(name="key", type=SettingType.INT, default=None, doc="", sensitive=True)
    assert secret.format(5) is None
    with pytest.raises(KafkaError) as refusal:
        secret.parse("hunter2")
    assert "hunter2" not in str(refusal.value)


@given(st.sampled_from(sorted(TOPIC_SETTINGS)), st.text(max_size=20))
def test_any_text_is_a_legal_value_or_refused(name: str, text: str) -> None:
    setting = TOPIC_SETTINGS[name]
    try:
        value = setting.parse(text)
    except KafkaError as refusal:
        assert refusal.code == ErrorCode.INVALID_CONFIG
    else:
        written = setting.format(value)
        assert written is not None
        assert setting.parse(written) == value


def test_every_default_is_legal() -> None:
    for setting in TOPIC_SETTINGS.values():
        text = setting.format(setting.default)
        assert text is not None
        assert setting.parse(text) == setting.default


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("compression.gzip.level", "6"),
        ("compression.lz4.level", "17"),
        ("compression.zstd.level", "-5"),
        ("local.retention.bytes", "-2"),
        ("local.retention.ms", "1000"),
        ("remote.log.copy.disable", "true"),
        ("remote.log.delete.on.disable", "true"),
        ("remote.storage.enable", "false"),
    ],
)
def test_kafkas_settings_of_a_topic_without_effect_are_accepted(name: str, value: str) -> None:
    """A mirrored topic keeps all its settings, or none."""
    TopicConfig().with_overrides({name: value, "cleanup.policy": "compact"})
    with pytest.raises(KafkaError, match=re.escape(name)):
        TopicConfig().with_overrides({name: "x"})


def test_the_default_may_lie_outside_of_the_limits() -> None:
    """Kafka: "Value must be between 1 and 9 or equal to -1"."""
    assert TopicConfig().with_overrides({"compression.gzip.level": "-1"}).compression_gzip_level == -1
    with pytest.raises(KafkaError, match=r"compression.gzip.level='0': must be between 1 and 9, or -1"):
        TopicConfig().with_overrides({"compression.gzip.level": "0"})


def test_tiered_storage_is_refused_by_name() -> None:
    with pytest.raises(KafkaError, match=r"remote.storage.enable=true: there is no tiered storage"):
        TopicConfig().with_overrides({"remote.storage.enable": "true"})
