"""The callbacks of a user at a rebalance: Kafka's ConsumerRebalanceListener, called inside `poll` and `close`."""

import inspect
import logging
from collections.abc import Awaitable, Callable, Iterable
from typing import Final

from tailrace.model.partitions import TopicPartition

_log: Final = logging.getLogger("tailrace.client")


class ConsumerRebalanceListener:
    """The work of a user when partitions come and leave; each method gets the partitions in order.

    A method of an asyncio consumer's listener may be a coroutine function. A blocking consumer calls the methods in
    another thread than `poll`, and waits for their end: they may use the consumer, except `poll` and `close`. An
    exception is logged, and raised by the next `poll`.
    """

    def on_partitions_assigned(self, partitions: list[TopicPartition]) -> Awaitable[None] | None:
        """Partitions have come, and no record of them was returned yet: `seek` decides where they begin."""

    def on_partitions_revoked(self, partitions: list[TopicPartition]) -> Awaitable[None] | None:
        """Partitions leave when this call ends: it may still commit in them. An auto commit has come before."""

    def on_partitions_lost(self, partitions: list[TopicPartition]) -> Awaitable[None] | None:
        """Partitions have left already, and other members may read them: a commit would be refused.

        By default the same as a revocation.
        """
        return self.on_partitions_revoked(partitions)


class RebalanceCallbacks:
    """Tells the listener once of each partition that comes and leaves. On the event loop of the consumer."""

    def __init__(self) -> None:
        self.listener: ConsumerRebalanceListener | None = None
        self._assigned: frozenset[TopicPartition] = frozenset()
        self._told: frozenset[TopicPartition] = frozenset()
        """The partitions that have come, for all that the listener knows."""
        self._lost: frozenset[TopicPartition] = frozenset()
        self._fault: Exception | None = None
        self._is_due = False

    def assign(self, partitions: Iterable[TopicPartition]) -> None:
        """Note the partitions that are assigned from now on; `tell` tells of new partitions."""
        self._assigned = frozenset(partitions)
        self._is_due = True

    def lose(self, lost: frozenset[TopicPartition]) -> None:
        """Note partitions that have left without a revocation; `tell` tells of lost partitions."""
        self._lost |= lost
        self._is_due = True

    async def tell(self) -> None:
        """Tell of lost partitions, then of partitions that have come. Raises the exception of the listener, also of an
        earlier call."""
        if not self._is_due:
            return
        self._is_due = False
        lost, self._lost = self._lost & self._told, frozenset()
        self._told -= lost
        come = self._assigned - self._told
        self._told |= come
        if self.listener is not None:
            await self._call(self.listener.on_partitions_lost, lost)
            await self._call(self.listener.on_partitions_assigned, come)
        fault, self._fault = self._fault, None
        if fault is not None:
            raise fault

    async def revoke(self, leaving: frozenset[TopicPartition]) -> None:
        """Tell of partitions that leave when this call ends."""
        told = leaving & self._told
        self._told -= leaving
        if self.listener is not None:
            await self._call(self.listener.on_partitions_revoked, told)

    async def _call(
        self, method: Callable[[list[TopicPartition]], Awaitable[None] | None], partitions: Iterable[TopicPartition]
    ) -> None:
        names = sorted(partitions)
        if not names:
            return
        try:
            answer = method(names)
            if inspect.isawaitable(answer):
                await answer
        except Exception as fault:  # noqa: BLE001  # of the user: the member must not fail by it
            _log.warning("a rebalance listener has failed for %s", ", ".join(map(str, names)), exc_info=fault)
            self._fault = self._fault or fault
            self._is_due = True
