"""The moment from which a server can be used: a topic can be created, and a record in this topic is acknowledged."""

import time

from benchmarks.peers.peer import READY_TIMEOUT_S, NotReady, Peer
from benchmarks.wire import PRODUCE_VERSION, Wire, batch, produce_request
from tailrace.model.errors import ErrorCode
from tailrace.protocol.messages.topics import CreatableTopic, CreateTopicsRequest

CREATE_TOPICS_VERSION = 5
TOPIC = "first"
_PAUSE_S = 0.002
_CREATED = (ErrorCode.NONE, ErrorCode.TOPIC_ALREADY_EXISTS)


def first_record(peer: Peer) -> None:
    """Create a topic and produce a record, again and again, until a record is acknowledged."""
    deadline = time.monotonic() + READY_TIMEOUT_S
    while time.monotonic() < deadline and peer.process.is_running:
        try:
            with Wire(peer.address) as wire:
                if _create(wire):
                    return acknowledged(peer, TOPIC, 0)
        except OSError:
            pass
        time.sleep(_PAUSE_S)
    raise NotReady(f"{peer.name} takes no record at {peer.address}\n{peer.process.output()[-2000:]}")


def _create(wire: Wire) -> bool:
    topic = CreatableTopic(name=TOPIC, num_partitions=1, replication_factor=1, assignments=(), configs=())
    (answer,) = wire.ask(CreateTopicsRequest(topics=(topic,)), CREATE_TOPICS_VERSION).topics
    return answer.error_code in _CREATED


def acknowledged(peer: Peer, topic: str, partition: int) -> None:
    """Produce a record with acks=all to this partition, again and again, until a record is acknowledged."""
    request = produce_request(topic, partition, batch(1, 100))
    deadline = time.monotonic() + READY_TIMEOUT_S
    with Wire(peer.address) as wire:
        while time.monotonic() < deadline:
            ((answer,),) = (found.partition_responses for found in wire.ask(request, PRODUCE_VERSION).responses)
            if not answer.error_code:
                return
            time.sleep(_PAUSE_S)
    raise NotReady(f"{peer.name} does not acknowledge a record in {topic}-{partition}: error {answer.error_code}")
