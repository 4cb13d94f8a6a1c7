"""Records that fit into a topic are written, though the batch that they were gathered into does not (KIP-126)."""

import os
from typing import Any

import pytest

from tailrace.client.blocking import Producer
from tailrace.model.errors import ErrorCode, KafkaError
from tailrace.testing import Cluster
from unit.client.new_topics import new_topic

SECONDS = 60.0
RECORDS = 300
LIMIT = 20_000


@pytest.fixture
def topic(tailrace_cluster: Cluster) -> str:
    """A topic that takes batches of 20 KB at most."""
    return new_topic(tailrace_cluster, configs={"max.message.bytes": str(LIMIT)})


@pytest.mark.parametrize("idempotent", [True, False])
@pytest.mark.parametrize("compression", [None, "gzip"])
@pytest.mark.parametrize("setting", ["max.message.bytes", "segment.bytes"])
def test_a_batch_that_is_too_large_is_split(
    tailrace_cluster: Cluster, setting: str, compression: str | None, idempotent: bool
) -> None:
    """Too large for the topic (MESSAGE_TOO_LARGE), or for a segment (RECORD_LIST_TOO_LARGE)."""
    topic = new_topic(tailrace_cluster, configs={setting: str(LIMIT)})
    values = [os.urandom(1_000) for _ in range(RECORDS)]
    settings: dict[str, Any] = {
        "compression": compression,
        "idempotent": idempotent,
        "batch_size": 100_000,
        "linger_ms": 50,
    }
    with Producer(tailrace_cluster.bootstrap_servers, **settings) as producer:
        futures = [producer.send(topic, value, partition=0) for value in values]
        producer.flush()
        assert all(future.done() for future in futures)
        offsets = [future.result().offset for future in futures]
    assert sorted(offsets) == list(range(RECORDS))
    if idempotent:
        assert offsets == list(range(RECORDS)), "the order of sending"


def test_a_record_that_is_too_large_fails_alone(tailrace_cluster: Cluster, topic: str) -> None:
    sizes = (100, 2 * LIMIT, 100)
    with Producer(tailrace_cluster.bootstrap_servers, batch_size=100_000, linger_ms=50) as producer:
        before, large, after = [producer.send(topic, os.urandom(size), partition=0) for size in sizes]
        with pytest.raises(KafkaError) as caught:
            large.result(SECONDS)
        assert caught.value.code is ErrorCode.MESSAGE_TOO_LARGE
        assert (before.result(SECONDS).offset, after.result(SECONDS).offset) == (0, 1)
