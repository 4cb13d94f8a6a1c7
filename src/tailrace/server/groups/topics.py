"""The present topics and views, for the machines of groups."""

from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Final

from tailrace.coordinators.groups.consumer.group import SubscribableTopic
from tailrace.coordinators.groups.consumer_records import RegularExpressionValue
from tailrace.metadata.image import EMPTY_IMAGE, ClusterImage, ImageDelta
from tailrace.metadata.views import Views, hashes_of, id_of
from tailrace.model.access import Operation
from tailrace.model.identity import ClientIdentity
from tailrace.model.ids import TopicId
from tailrace.model.key_ranges import WHOLE, KeyRange
from tailrace.model.partitions import TopicPartition
from tailrace.protocol.access import topic_resource
from tailrace.server.authorizer import PERMIT_ALL, Authorizer
from tailrace.server.groups.topic_patterns import TopicPatterns

_MOST_DESCRIBED: Final = 1_000_000
"""The most names in kept answers of `described_by`, about: the names are those of the expressions, and take no more
room."""


class GroupTopics:
    """Implements `coordinators.groups.consumer.group.Topics`, and finds ids for sweeps. Regular expressions match
    topics, not views."""

    def __init__(self, patterns: TopicPatterns, views: Views, authorizer: Authorizer) -> None:
        self._patterns = patterns
        self._authorizer = authorizer
        self._described: dict[tuple[str, str, frozenset[str]], frozenset[str]] = {}
        """Answers of `described_by` under `_rules`, by principal, address and names."""
        self._described_names = 0
        self._rules: object = None
        """The version of the rules of access that the answers are of."""
        self._images = 0
        self._views = views
        self._image = EMPTY_IMAGE

    def on_image(self, image: ClusterImage, delta: ImageDelta) -> None:
        self._images += 1
        self._patterns.on_image(image, delta)
        self._image = image

    def ids_now(self, names: Collection[str]) -> Mapping[str, TopicId | None]:
        """The ids of these topics at the time of each access; None if no topic has the name."""
        return _IdsNow(names, lambda: self._image)

    @property
    def version(self) -> int:
        return self._images + self._patterns.version

    def find(self, name: str) -> SubscribableTopic | None:
        topic = self._views.topic(self._image, name)
        return None if topic is None else SubscribableTopic(topic.topic_id, len(topic.partitions))

    def hashes_of(self, partition: TopicPartition) -> KeyRange:
        """The hashes that the records of the partition may have."""
        topic = self._views.topic(self._image, partition.topic)
        return WHOLE if topic is None else hashes_of(topic, partition.partition)

    def name_of(self, topic_id: bytes) -> str | None:
        topic = self._views.topic_by_id(self._image, topic_id)
        return None if topic is None else topic.name

    def matches(self, expression: str) -> RegularExpressionValue | None:
        return self._patterns.find(expression)

    def described_by(self, principal: str, client_host: str, names: frozenset[str]) -> frozenset[str]:
        authorizer = self._authorizer
        if authorizer is PERMIT_ALL:
            return names
        if not principal:  # recorded before there was an authorizer; the next heartbeat has the principal
            return frozenset()
        address = client_host.removeprefix("/") if authorizer.asks_addresses else ""
        if authorizer.version is not self._rules or self._described_names > _MOST_DESCRIBED:
            self._described, self._described_names, self._rules = {}, 0, authorizer.version
        described = self._described.get((principal, address, names))
        if described is None:
            client = ClientIdentity(listener_name="", address=address, principal=principal)
            found = filter(lambda name: authorizer.permits(client, Operation.DESCRIBE, topic_resource(name)), names)
            described = frozenset(found)
            self._described[principal, address, names] = described
            self._described_names += len(names)
        return described


class _IdsNow(Mapping[str, TopicId | None]):
    """The ids by name, read at each access: a sweep has several steps, and between two steps a new topic may take the
    name of a deleted topic. The offsets of the new topic must stay."""

    def __init__(self, names: Collection[str], image: Callable[[], ClusterImage]) -> None:
        self._names = frozenset(names)
        self._image = image

    def __getitem__(self, name: str) -> TopicId | None:
        if name not in self._names:
            raise KeyError(name)
        return id_of(self._image(), name)

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)
