"""Records of topics that no broker has described yet: parked until the answer, or until their time is over."""

import asyncio
from collections.abc import Callable

from tailrace.client.cluster_view import TopicInfo
from tailrace.client.kept_tasks import kept_task
from tailrace.client.router import Router
from tailrace.client.writing.outgoing import PrebuiltBatch, Unsent
from tailrace.model.errors import KafkaError

Item = Unsent | PrebuiltBatch


class ParkedRecords:
    """The parked records of one producer, by topic and in order. On its event loop only."""

    def __init__(
        self,
        router: Router,
        accept: Callable[[list[Item], TopicInfo], None],
        refuse: Callable[[Item, KafkaError], None],
    ) -> None:
        """`accept` takes the records of a topic that is described, `refuse` a record whose topic is not."""
        self._router = router
        self._accept = accept
        self._refuse = refuse
        self.by_topic: dict[str, list[Item]] = {}
        """The records by topics that are asked for; only this object changes it."""
        self._troubles: dict[str, KafkaError] = {}
        self.tasks: set[asyncio.Task[None]] = set()

    @property
    def items(self) -> list[Item]:
        """The parked records of every topic."""
        return [item for items in self.by_topic.values() for item in items]

    @property
    def trouble(self) -> KafkaError | None:
        """The fault that keeps a topic from being described; None without a fault."""
        return next(iter(self._troubles.values()), None)

    def park(self, item: Item, *, timeout_ms: int) -> None:
        """Keep the record; the first record of a topic asks the brokers for the topic, for this time."""
        parked = self.by_topic.get(item.topic)
        if parked is None:
            parked = self.by_topic[item.topic] = []
            task = kept_task(self._resolve(item.topic, timeout_ms))
            self.tasks.add(task)
            task.add_done_callback(self.tasks.discard)
        parked.append(item)

    def drop(self) -> list[Item]:
        """Remove and return all parked records."""
        dropped = self.items
        for parked in self.by_topic.values():
            parked.clear()
        return dropped

    async def _resolve(self, topic: str, timeout_ms: int) -> None:
        async def attempt() -> TopicInfo | None:
            if not self.by_topic[topic]:
                return None  # the records were dropped with their transaction
            # A partition without a leader does not hold back other partitions: the sender waits for its leader.
            try:
                await self._router.ensure_fresh((topic,), allow_auto_create=True)
                return self._router.view.topic(topic)
            except KafkaError as fault:
                self._troubles[topic] = fault
                raise

        try:
            info = await self._router.retry(attempt, timeout_ms=timeout_ms)
        except KafkaError as fault:
            for item in self.by_topic.pop(topic):
                self._refuse(item, fault)
            return
        finally:
            self._troubles.pop(topic, None)
        parked = self.by_topic.pop(topic)
        if info is not None:
            self._accept(parked, info)
