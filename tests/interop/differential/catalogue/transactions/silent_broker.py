"""A broker that is registered and never answers: markers to the partitions that it leads stay unwritten.

Its partitions need no marker any more when their topic is deleted. So a script decides how long an end takes.
"""

from typing import Any

from interop.differential.script import Answers, Script, ask
from tailrace.protocol.messages.api_versions import ApiVersionsRequest
from tailrace.protocol.messages.metadata import MetadataRequest
from tailrace.protocol.messages.registrations import (
    BrokerHeartbeatRequest,
    BrokerRegistrationRequest,
    RegisteredFeature,
    RegisteredListener,
)
from tailrace.protocol.messages.topics import (
    CreatableReplicaAssignment,
    CreatableTopic,
    CreateTopicsRequest,
    DeleteTopicsRequest,
)

SETTINGS = {"broker.session.timeout.ms": "600000"}
"""So that no node fences the broker, for as long as a script takes."""
_BROKER = 2
_CONTROLLER = "registrations@controller"
_CLOSED_PORT = 1
_LIMIT_MS = 10_000


def silent_broker() -> Script:
    """A broker registers, and is not fenced. New topics have to name their replicas from then on."""
    yield from ask(
        "the features", ApiVersionsRequest(client_software_name="s", client_software_version="1"), 4, is_compared=False
    )
    yield from ask("the cluster's id", MetadataRequest(topics=()), 10, is_compared=False)

    def registration(answers: Answers) -> BrokerRegistrationRequest:
        return BrokerRegistrationRequest(
            broker_id=_BROKER,
            cluster_id=answers["the cluster's id"].cluster_id,
            incarnation_id=b"a silent broker.",
            listeners=(RegisteredListener(name="PLAINTEXT", host="127.0.0.1", port=_CLOSED_PORT, security_protocol=0),),
            features=tuple(
                RegisteredFeature(
                    name=each.name, min_supported_version=each.min_version, max_supported_version=each.max_version
                )
                for each in answers["the features"].supported_features
            ),
            rack=None,
            log_dirs=(b"its directory...",),
        )

    yield from ask("a broker registers", registration, 4, connection=_CONTROLLER, is_compared=False)

    def heartbeat(answers: Answers) -> BrokerHeartbeatRequest:
        epoch = answers["a broker registers"].broker_epoch
        return BrokerHeartbeatRequest(
            broker_id=_BROKER,
            broker_epoch=epoch,
            current_metadata_offset=epoch,
            want_fence=False,
            want_shut_down=False,
        )

    yield from ask(
        "its heartbeat",
        heartbeat,
        1,
        connection=_CONTROLLER,
        until=lambda answer: not answer.is_fenced,
        is_compared=False,
    )


def led_by_it(topic: str) -> Script:
    """A topic of one partition, led by the silent broker."""
    placed = CreatableReplicaAssignment(partition_index=0, broker_ids=(_BROKER,))
    created = CreatableTopic(name=topic, num_partitions=-1, replication_factor=-1, assignments=(placed,), configs=())
    yield from ask(f"create {topic}", CreateTopicsRequest(topics=(created,), timeout_ms=_LIMIT_MS))
    yield from ask(
        f"{topic} is shown",
        MetadataRequest(topics=None),
        10,
        until=lambda answer: _leader(answer, topic) == _BROKER,
        is_compared=False,
    )


def _leader(answer: Any, topic: str) -> int:
    found = {each.name: each.partitions for each in answer.topics}
    return next((partition.leader_id for partition in found.get(topic, ())), -1)


def deleted(topic: str) -> Script:
    """The topic is gone, with the markers for the topic."""
    yield from ask(f"delete {topic}", DeleteTopicsRequest(topic_names=(topic,), timeout_ms=_LIMIT_MS), 5)
