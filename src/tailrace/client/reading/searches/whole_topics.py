"""The topics that a consumer without a group reads: every partition, also partitions that are added later."""

from collections.abc import Iterable

from tailrace.client.cluster_view import AbsentTopic
from tailrace.client.reading.fetcher import Fetcher
from tailrace.client.reading.searches.retried_search import RetriedSearch
from tailrace.client.router import Router
from tailrace.model.errors import KafkaError
from tailrace.model.partitions import TopicPartition

_ABSENT_WAIT_MS = 5_000
"""The longest wait for a topic that is to be read to its end: brokers learn of a new topic one after the other."""


class WholeTopics:
    """Assigns all partitions of its topics to the fetcher. On its event loop only.

    The partitions are looked up once, and again with each refresh of metadata (metadata.max.age.ms). A partition that
    is added later is read from its first record on, whatever auto.offset.reset says: its records are newer than the
    consumer.
    """

    def __init__(self, router: Router, fetcher: Fetcher, topics: Iterable[str], *, is_followed: bool) -> None:
        """`is_followed`: whether partitions that are added later are read too, and a missing topic is waited for."""
        self._router = router
        self._fetcher = fetcher
        self._topics = tuple(sorted(set(topics)))
        self._is_followed = is_followed
        self._search = RetriedSearch(router, on_end=fetcher.wake)
        self._seen_generation = -1
        self._began_ms: int | None = None
        self.are_found = False
        """Whether the partitions are assigned."""

    @property
    def trouble(self) -> KafkaError | None:
        """The fault that keeps the topics from being read, while the search is repeated."""
        return self._search.trouble

    def advance(self) -> None:
        """Assign what new metadata show; start a search while a topic is missing.

        Raises KafkaError for a fault of the last search that a retry does not cure, and AbsentTopic for a topic that is
        to be read to its end and does not exist after a few seconds.
        """
        fault = self._search.take_fault()
        if fault is not None:
            raise fault
        if not self.are_found:
            self._check_absent()
            self._search.start_if_due(self._find)
        elif self._is_followed and self._router.view.generation != self._seen_generation:
            self._follow()

    def _check_absent(self) -> None:
        if self._began_ms is None:
            self._began_ms = self._router.now_ms()
        is_late = self._router.now_ms() - self._began_ms >= _ABSENT_WAIT_MS
        if is_late and not self._is_followed and isinstance(self.trouble, AbsentTopic):
            raise self.trouble

    def next_due_ms(self, deadline_ms: int) -> int:
        """The time of the next search, at most the deadline."""
        return deadline_ms if self.are_found else self._search.next_due_ms(deadline_ms)

    def cancel(self) -> None:
        """Cancel the search."""
        self._search.cancel()

    async def _find(self) -> None:
        await self._router.ensure_fresh(self._topics)
        self._seen_generation = self._router.view.generation
        self._fetcher.assign([name for topic in self._topics for name in self._partitions(topic)])
        self.are_found = True

    def _partitions(self, topic: str) -> list[TopicPartition]:
        """The partitions of the topic. Raises KafkaError while the topic is unknown."""
        return [TopicPartition(topic, info.partition) for info in self._router.view.topic(topic).partitions]

    def _follow(self) -> None:
        view, assigned = self._router.view, self._fetcher.assigned
        self._seen_generation = view.generation
        known = frozenset(assigned.by_name)
        added = [
            name
            for topic in self._topics
            if view.find(topic) is not None
            for name in self._partitions(topic)
            if name not in known
        ]
        if added:
            self._fetcher.assign([*known, *added])
            for name in added:
                assigned.seek(name, 0)
