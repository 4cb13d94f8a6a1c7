"""kafkajs as an administrator: what it asks for happens, and it reads the answers."""

from uuid import uuid4

import pytest

from interop.kafkajs import absent, administer
from tailrace.testing import Cluster


@pytest.mark.interop
def test_kafkajs_administers_topics_settings_records_and_groups(tailrace_cluster: Cluster) -> None:
    if why := absent():
        pytest.skip(why)
    answers = administer(tailrace_cluster.bootstrap_servers, f"kafkajs-{uuid4()}")
    host, _, port = tailrace_cluster.bootstrap_servers.rpartition(":")
    assert answers["cluster"]["brokers"] == [{"nodeId": 1, "host": host, "port": int(port)}]
    assert answers["cluster"]["controller"] == 1
    assert (answers["created"], answers["createdAgain"], answers["listed"]) == (True, False, True)
    assert [(part["partitionId"], part["leader"], part["isr"]) for part in answers["metadata"]] == [
        (0, 1, [1]),
        (1, 1, [1]),
    ]
    assert {entry["configName"]: entry["configValue"] for entry in answers["settings"]} == {"segment.ms": "9000"}
    assert offsets(answers["offsets"], "low", "high") == [("0", "3"), ("0", "0")]
    assert offsets(answers["offsetsAtTime"], "offset") == [("1",), ("0",)]
    assert offsets(answers["offsetsAfterDeletion"], "low", "high") == [("1", "3"), ("0", "0")]
    (committed,) = answers["committed"]
    assert offsets(committed["partitions"], "offset") == [("2",), ("-1",)]
    assert (answers["group"], answers["groupListed"]) == ("Empty", True)
    assert [result["errorCode"] for result in answers["groupDeleted"]] == [0]
    assert answers["listedAfterDeletion"] is False


def offsets(told: list[dict[str, object]], *fields: str) -> list[tuple[object, ...]]:
    """The fields of each partition, in order."""
    return [tuple(part[field] for field in fields) for part in sorted(told, key=lambda part: str(part["partition"]))]
