"""The choice of another replica for a consumer that asks the leader (KIP-392).

The candidates are the followers in sync that can serve the read (`InSyncReplicas.serving`) and that are alive with the
consumer's listener. A consumer on a follower stays there until the follower refuses a fetch, or until the consumer
itself asks the leader again. A selector is code of a user: whatever the selector raises or returns, the consumer gets
an answer.
"""

import logging
from typing import Final

from tailrace.model.ids import BrokerId
from tailrace.protocol.messages.fetch import FetchRequest
from tailrace.replication.partition import Partition
from tailrace.replication.replica_selector import (
    ClientMetadata,
    LeaderSelector,
    PartitionView,
    RackAwareReplicaSelector,
    ReplicaNode,
    ReplicaSelector,
    ReplicaView,
)
from tailrace.server.bounded_lines import BoundedLines
from tailrace.server.context import RequestContext
from tailrace.server.ports import Clock, Controller

FIRST_WITH_RACK: Final = 11
NO_OTHER: Final = -1
"""The value in place of the id of a preferred replica: the consumer stays with the broker of its request."""


class ReplicaChoices:
    """The selector of one broker."""

    def __init__(self, selector: ReplicaSelector, *, controller: Controller, broker_id: BrokerId, clock: Clock) -> None:
        """`broker_id`: this broker."""
        self.selector: Final = selector
        self.controller: Final = controller
        self.broker_id: Final = broker_id
        self.clock: Final = clock
        self.may_redirect: Final = type(selector) is not LeaderSelector
        self.redirects = 0
        """The reads that were answered with another replica."""
        self.failures = 0
        """The number of the selector's exceptions, and of its results that were not candidates."""
        self._failed = BoundedLines("replica-selector-failed", clock=clock, level=logging.WARNING)

    def of_consumer(self, request: FetchRequest, context: RequestContext) -> "ReplicaChoice | None":
        """The choice for the consumer that has sent a request; None if no other replica can be chosen."""
        selector, rack_id = self.selector, request.rack_id
        if context.api_version < FIRST_WITH_RACK or not self.may_redirect:
            return None
        if not rack_id and type(selector) is RackAwareReplicaSelector:
            return None
        identity = context.identity
        client = ClientMetadata(
            rack_id=rack_id,
            client_id=context.client_id or "",
            client_address=identity.address,
            principal=identity.principal,
            listener_name=identity.listener_name,
        )
        return ReplicaChoice(self, client)

    def note_failure(self, partition: Partition, fault: object) -> None:
        """Count and log a failure of the selector at this partition."""
        self.failures += 1
        self._failed.write(
            "class=%s partition=%s fault=%r", type(self.selector).__qualname__, partition.topic_partition, _told(fault)
        )


def _told(fault: object) -> str:
    try:
        return str(fault)[:300]
    except BaseException as another:  # noqa: BLE001 - the fault is an object of users, too
        return type(another).__name__


class ReplicaChoice:
    """The choice for one consumer, for one request."""

    __slots__ = ("_choices", "client")

    def __init__(self, choices: ReplicaChoices, client: ClientMetadata) -> None:
        self._choices = choices
        self.client = client

    def preferred(self, partition: Partition, offset: int) -> int:
        """The replica that should serve the consumer at this offset of a partition that is led here, or NO_OTHER."""
        choices = self._choices
        followers = partition.in_sync.serving(offset)
        if not followers:
            return NO_OTHER
        now_ms = choices.clock.monotonic_ms()
        candidates = [
            ReplicaView(endpoint, progress.end_offset, max(0, now_ms - progress.caught_up_ms))
            for replica_id, progress in followers
            if (endpoint := self._endpoint(replica_id, must_live=True)) is not None
        ]
        if not candidates:
            return NO_OTHER
        own = self._endpoint(choices.broker_id, must_live=False)
        leader = None if own is None else ReplicaView(own, partition.log.log_end_offset, 0)
        view = PartitionView(frozenset((*candidates, leader) if leader is not None else candidates), leader)
        return self._select(partition, view)

    def _endpoint(self, broker_id: BrokerId, *, must_live: bool) -> ReplicaNode | None:
        """The broker's address for this consumer; None without an address, or if the broker does not live."""
        broker = self._choices.controller.image.brokers.get(broker_id)
        if broker is None or (must_live and not broker.is_alive):
            return None
        endpoint = broker.endpoint(self.client.listener_name)
        return None if endpoint is None else ReplicaNode(broker_id, endpoint.host, endpoint.port, broker.rack)

    def _select(self, partition: Partition, view: PartitionView) -> int:
        choices = self._choices
        try:
            chosen = choices.selector.select(partition.topic_partition, self.client, view)
            if chosen is None:
                return NO_OTHER
            known = next((replica for replica in view.replicas if replica is chosen or replica == chosen), None)
        except BaseException as fault:  # noqa: BLE001 - code of users, which ends neither this request nor the node
            choices.note_failure(partition, fault)
            return NO_OTHER
        if known is None:
            choices.note_failure(partition, f"{type(chosen).__name__} is no candidate")
            return NO_OTHER
        if known.endpoint.id == choices.broker_id:
            return NO_OTHER
        choices.redirects += 1
        return known.endpoint.id
