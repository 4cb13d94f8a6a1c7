"""A broker of a simulated cluster with the product's coordinators of transactions and groups, and their markers."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final

from simulation.replicas.node import ReplicaNode
from simulation.replicas.requests import ask
from tailrace.coordinators.config import TransactionConfig
from tailrace.protocol.messages.transactions import AddPartitionsToTxnRequest, WriteTxnMarkersRequest
from tailrace.server.assembly.config import BrokerConfig
from tailrace.server.quorum.controller import OnImage

_CLEANUP_MS: Final = 400
"""transaction.abort.timed.out.transaction.cleanup.interval.ms: 10 s in the product."""
_BREAKS_MS: Final = (200, 1_000, 5_000)
"""The times after which a connection without an answer is broken. A request on that connection may still arrive."""
_LATEST_MS: Final = (300, 3_000, 35_000)
"""The longest delays of a request on an old connection: the third is longer than the longest pause of the marker
sender."""


class TransactionNode(ReplicaNode):
    """A `ReplicaNode` that also has coordinators. The cluster sets `late` and `on_markers`."""

    late: float = 0.0
    """The rate of requests between coordinators and leaders that come a second time, much later. From 0 to 1."""
    on_markers: Callable[[WriteTxnMarkersRequest], None]
    """Called with each request for markers that is about to leave."""

    def _config(self) -> BrokerConfig:
        transactions = TransactionConfig(transaction_abort_timed_out_transaction_cleanup_interval_ms=_CLEANUP_MS)
        return replace(super()._config(), transactions=transactions)

    def _load(self) -> None:
        self.broker.load(self.image)

    @property
    def _listeners(self) -> tuple[OnImage, ...]:
        return self.broker.listeners

    def send(
        self,
        node_id: int,
        request: Any,
        on_reply: Callable[[Any], None],
        *,
        oldest_version: int = 0,
        timeout_ms: int | None = None,
    ) -> None:
        """A `server.ports.Peer`; requests of coordinators and to coordinators may come a second time, much later."""
        if isinstance(request, WriteTxnMarkersRequest | AddPartitionsToTxnRequest):
            kind = type(request).__name__
            if isinstance(request, WriteTxnMarkersRequest):
                self.on_markers(request)
            breaks_ms = self._world.choice(_BREAKS_MS, "breaks", (kind, self.node_id))
            timeout_ms = breaks_ms if timeout_ms is None else min(breaks_ms, timeout_ms)
            if self._world.chance(self.late, "late", (kind, self.node_id)):
                self._world.sometimes[f"{kind} comes again late"] += 1
                self._world.after(self._late_ms(kind), lambda: self._send_again(node_id, request))
        super().send(node_id, request, on_reply, oldest_version=oldest_version, timeout_ms=timeout_ms)

    def _late_ms(self, kind: str) -> int:
        key = (kind, self.node_id)
        return self._world.between(1, self._world.choice(_LATEST_MS, "latest", key), "lateness", key)

    def _send_again(self, node_id: int, request: Any) -> None:
        """Send a request again as if on an old connection, which was given up long ago, perhaps in an earlier life of
        this node."""
        ask(self._world, self._network, self.node_id, self._find(node_id), request, 99, lambda response: None)
