"""Which topics the subscribed regular expressions of KIP-848 match, kept as the cluster's topics come and go.

1. An expression is held against all topics once, and against each new topic then. Both take turns with other work.
2. Internal topics match nothing: a group that reads the log of its own commits never comes to rest.
3. An expression not asked for lately is dropped when there is too much; it is matched anew when it is asked for.
"""

from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator
from typing import Final

from tailrace.coordinators.groups.consumer.records import RegularExpressionValue
from tailrace.metadata.image import ClusterImage, ImageDelta
from tailrace.model.errors import ErrorCode, KafkaError
from tailrace.model.partitions import INTERNAL_TOPICS
from tailrace.server.patterns import compile_pattern
from tailrace.server.ports import Clock

OnResolved = Callable[[KafkaError | None], None]

_NAMES_PER_TURN: Final = 1000
"""About 2 us each."""
_TURN_MS: Final = 5
_NAMES_PER_LOOK_AT_THE_CLOCK: Final = 8
"""The slowest expression that fits into its memory takes about 1 ms for a name."""
_MOST_EXPRESSIONS: Final = 4096
_MOST_MATCHES: Final = 1_000_000
"""Names in all sets together, some 60 bytes each."""


class _Expression:
    """One expression, and the topics that it matches as far as they have been looked at."""

    __slots__ = ("fault", "names", "size_bytes", "text", "topics", "value", "waiting")

    def __init__(self, text: str, names: Iterable[str]) -> None:
        self.text = text
        self.names: deque[Iterator[str]] = deque((iter(names),))
        """Still to be looked at."""
        self.topics: set[str] = set()
        self.size_bytes = 0
        self.value: RegularExpressionValue | None = None
        """The last complete result."""
        self.fault: KafkaError | None = None
        """Why there is none."""
        self.waiting: list[OnResolved] = []

    def add(self, name: str) -> None:
        if name not in self.topics:
            self.topics.add(name)
            self.size_bytes += len(name) + 1

    def discard(self, name: str) -> bool:
        if name not in self.topics:
            return False
        self.topics.remove(name)
        self.size_bytes -= len(name) + 1
        return True


class TopicPatterns:
    """The expressions of all groups of a node. `max_bytes` is what the names that one matches may take."""

    def __init__(self, *, clock: Clock, max_bytes: int) -> None:
        self._clock = clock
        self._max_bytes = max_bytes
        self._image = ClusterImage()
        self._expressions: OrderedDict[str, _Expression] = OrderedDict()
        """The one that was asked for last comes last."""
        self._unfinished: deque[_Expression] = deque()
        self._is_scheduled = False
        self.version = 0
        """Another number after each change of what any expression matches."""

    def resolve(self, text: str, on_resolved: OnResolved) -> None:
        """Have `find` know the expression; called once, now or later, with the reason if it never will.

        Raises KafkaError INVALID_REGULAR_EXPRESSION (128).
        """
        compile_pattern(text)
        expression = self._expression(text)
        if expression.names:
            expression.waiting.append(on_resolved)
        else:
            on_resolved(expression.fault)

    def find(self, text: str) -> RegularExpressionValue | None:
        """The topics that the expression matches; None while not known yet: `version` is another when they are."""
        try:
            return self._expression(text).value
        except KafkaError:  # a stored one that a Kafka broker took and this engine does not: it keeps its topics
            return None

    def on_image(self, image: ClusterImage, delta: ImageDelta) -> None:
        """The cluster's topics are these now."""
        self._image = image
        if not self._expressions or not (delta.created_topics or delta.deleted_topics):
            return
        created = [topic.name for topic in delta.created_topics]
        for expression in self._expressions.values():
            gone = [topic.name for topic in delta.deleted_topics if expression.discard(topic.name)]
            if gone and not expression.names:
                self._finish(expression)
            if created:
                if not expression.names:
                    self._unfinished.append(expression)
                expression.names.append(iter(created))
        self._look()

    def _expression(self, text: str) -> _Expression:
        expression = self._expressions.get(text)
        if expression is None:
            compile_pattern(text)
            expression = self._expressions[text] = _Expression(text, self._image.topics)
            self._unfinished.append(expression)
            self._look()
            self._drop_old_ones()
        self._expressions.move_to_end(text)
        return expression

    def _look(self) -> None:
        """Look at as many names as fit into this turn, and go on in another."""
        until_ms, names_left = self._clock.monotonic_ms() + _TURN_MS, _NAMES_PER_TURN
        while self._unfinished and names_left > 0 and self._clock.monotonic_ms() < until_ms:
            names_left -= _NAMES_PER_LOOK_AT_THE_CLOCK
            self._look_at_some(self._unfinished[0])
        if self._unfinished and not self._is_scheduled:
            self._is_scheduled = True
            self._clock.call_soon(self._go_on)

    def _go_on(self) -> None:
        self._is_scheduled = False
        self._look()

    def _look_at_some(self, expression: _Expression) -> None:
        matches, topics = compile_pattern(expression.text), self._image.topics
        for _ in range(_NAMES_PER_LOOK_AT_THE_CLOCK):
            name = next(expression.names[0], None)
            if name is None:
                expression.names.popleft()
                if not expression.names:
                    self._unfinished.popleft()
                    self._finish(expression)
                    return
            elif name in topics and name not in INTERNAL_TOPICS and matches(name.encode()):
                expression.add(name)

    def _finish(self, expression: _Expression) -> None:
        """All names are looked at: say so where that is news."""
        before = expression.value
        if expression.size_bytes > self._max_bytes:
            detail = (
                f"the regular expression matches {len(expression.topics)} topics, whose names take more than "
                f"group.max.metadata.bytes={self._max_bytes}"
            )
            expression.fault = KafkaError(ErrorCode.INVALID_REGULAR_EXPRESSION, detail)
        else:
            expression.fault = None
        if expression.fault is None and (before is None or expression.topics != set(before.topics)):
            expression.value = RegularExpressionValue(
                topics=tuple(sorted(expression.topics)), timestamp=self._clock.now_ms()
            )
            self.version += 1
        waiting, expression.waiting = expression.waiting, []
        for on_resolved in waiting:
            on_resolved(expression.fault)

    def _drop_old_ones(self) -> None:
        matches = sum(len(expression.topics) for expression in self._expressions.values())
        for text, expression in list(self._expressions.items())[:-1]:
            if matches <= _MOST_MATCHES and len(self._expressions) <= _MOST_EXPRESSIONS:
                return
            if not expression.names:
                matches -= len(expression.topics)
                del self._expressions[text]
