"""Checks that a broker's or controller's command comes from that process: only the process itself has the secret of its
incarnation."""

from tailrace.metadata.commands import CommandOfBroker
from tailrace.metadata.image import ClusterImage
from tailrace.model.errors import ErrorCode, KafkaError
from tailrace.model.ids import format_topic_id
from tailrace.model.proofs import may_speak_for


def is_from_registered_broker(image: ClusterImage, command: CommandOfBroker) -> bool:
    """Whether a command is from the broker in whose name it was given, in its registration in this image."""
    broker = image.brokers.get(command.broker_id)
    if broker is None or broker.broker_epoch != command.broker_epoch:
        return False
    return may_speak_for(broker.incarnation_id, command.secret)


def check_secret(owner: str, found_id: bytes, secret: bytes) -> None:
    """Raises KafkaError CLUSTER_AUTHORIZATION_FAILED if this is not the secret of the owner of this id."""
    if not may_speak_for(found_id, secret):
        raise KafkaError(
            ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
            f"the request lacks the secret of {owner}, whose id is {format_topic_id(found_id)}",
        )
