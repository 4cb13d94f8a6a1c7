import json
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import pytest
from pyspark import cloudpickle

from tailrace.model.errors import ErrorCode, KafkaError
from tailrace.model.partitions import TopicPartition
from tailrace.spark import session
from tailrace.spark.session import GroupProgress


class Group:
    """The double of an administrator's client: records offsets, or cannot reach its cluster."""

    def __init__(self) -> None:
        self.is_there = False
        self.attempts = 0
        self.shown: dict[str, int] = {}

    def __enter__(self) -> "Group":
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def commit_offsets(self, group: str, offsets: Mapping[TopicPartition, int], *, timeout_ms: int) -> None:
        self.attempts += 1
        if not self.is_there:
            raise KafkaError(ErrorCode.NETWORK_EXCEPTION, "no broker answers")
        self.shown |= {str(partition): offset for partition, offset in offsets.items()}


@pytest.fixture
def group(monkeypatch: pytest.MonkeyPatch) -> Group:
    group = Group()
    monkeypatch.setattr(session, "Admin", SimpleNamespace(of=lambda _: group))
    return group


def tell(listener: GroupProgress, offset: int) -> None:
    progress = SimpleNamespace(name=None, sources=[SimpleNamespace(endOffset=json.dumps({"flights": {"0": offset}}))])
    event: Any = SimpleNamespace(progress=progress)
    listener.onQueryProgress(event)


def end(listener: GroupProgress) -> None:
    event: Any = SimpleNamespace()
    listener.onQueryTerminated(event)


def test_a_cluster_that_is_gone_does_not_hold_up_the_other_listeners_at_every_batch(
    group: Group, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [1000.0]
    monkeypatch.setattr(session, "time", SimpleNamespace(monotonic=lambda: now[0]))
    listener = GroupProgress("gone:9092", "watchers")
    for offset in range(10):
        tell(listener, offset)
    assert group.attempts == 1
    group.is_there = True
    now[0] += session.REST_S
    tell(listener, 10)
    assert (group.attempts, group.shown) == (2, {"flights-0": 10})


def test_skipped_offsets_are_committed_when_the_query_ends(group: Group) -> None:
    listener = GroupProgress("gone:9092", "watchers")
    tell(listener, 1)
    group.is_there = True
    tell(listener, 2)
    assert group.shown == {}
    end(listener)
    assert group.shown == {"flights-0": 2}
    end(listener)
    assert group.attempts == 2, "there is nothing left to show"


def test_a_listener_takes_the_settings_of_a_client_and_is_never_pickled_with_a_password() -> None:
    """Spark Connect pickles a listener, and sends it to the server."""
    settings = {
        "bootstrap.servers": "gone:9092",
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "PLAIN",
        "sasl.username": "alice",
    }
    sent = cloudpickle.dumps(GroupProgress({**settings, "sasl.password": "env:OF_ALICE"}, "watchers"))
    assert b"OF_ALICE" in sent
    with pytest.raises(TypeError, match="sasl.password is not pickled"):
        cloudpickle.dumps(GroupProgress({**settings, "sasl.password": "canary"}, "watchers"))
