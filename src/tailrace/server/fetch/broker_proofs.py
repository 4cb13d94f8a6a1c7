"""The proofs of brokers that ask this node for records or offsets, as followers do.

A broker proves itself with the secret of its incarnation, whose hash is the incarnation id of its registration in this
node's image. The registrations of Kafka's brokers, and of earlier releases, need no secret (`model.proofs`).
"""

from hmac import compare_digest
from typing import Final

from tailrace.metadata.image import BrokerImage
from tailrace.model.ids import BrokerId
from tailrace.model.proofs import may_speak_for
from tailrace.replication.partition import Partition
from tailrace.server.ports import Controller


class BrokerProofs:
    """Compares secrets with the registrations in this node's image. Keeps the last good secret of each broker."""

    def __init__(self, controller: Controller) -> None:
        self._controller: Final = controller
        self._proven: Final[dict[BrokerId, tuple[bytes, bytes]]] = {}

    def registration(self, broker_id: BrokerId, secret: bytes) -> BrokerImage | None:
        """The registration of the broker that has sent a request with this secret; None for another sender."""
        known = self._controller.image.brokers.get(broker_id)
        if known is None:
            return None
        incarnation_id, proven = self._proven.get(broker_id, (b"", b""))
        if incarnation_id == known.incarnation_id and compare_digest(proven, secret):
            return known  # a follower fetches many times a second: not each fetch needs a hash
        if not may_speak_for(known.incarnation_id, secret):
            return None
        self._proven[broker_id] = known.incarnation_id, bytes(secret)
        return known

    def may_see_log_end(self, partition: Partition, replica_id: int, leader_epoch: int, secret: bytes) -> bool:
        """Whether a request with these fields, which has passed `check_leader`, may get offsets above the high
        watermark: a follower has the present leader epoch, and is a registered replica.

        ListOffsets and OffsetForLeaderEpoch have no broker epoch to check; their answers have only offsets.
        """
        if leader_epoch < 0 or partition.state is None or replica_id not in partition.state.replicas:
            return False
        return self.registration(BrokerId(replica_id), secret) is not None
