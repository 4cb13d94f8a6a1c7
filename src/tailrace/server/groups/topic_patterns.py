"""The topics that the subscribed regular expressions of KIP-848 match, kept as the cluster's topics come and go.

1. An expression is held against all topics once, and then against each topic that is created or deleted. Both take
   turns with other work, and the expressions with each other: one that takes long keeps no other one waiting.
2. Internal topics match nothing: a group that reads the log of its own commits never comes to rest.
3. An expression not asked for lately is dropped when there is too much; it is matched anew when it is asked for.
"""

from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator
from functools import lru_cache
from typing import Final

from tailrace.coordinators.groups.consumer.records import RegularExpressionValue
from tailrace.metadata.image import ClusterImage, ImageDelta
from tailrace.model.errors import ErrorCode, KafkaError
from tailrace.model.partitions import INTERNAL_TOPICS
from tailrace.server.ports import Clock

Matcher = Callable[[bytes], bool]
"""Whether the expression matches the whole of a text in UTF-8."""

LONGEST_PATTERN: Final = 4096
"""Characters."""
_MOST_UNICODE_CLASSES: Final = 16
"""Each is hundreds of ranges; a thousand take 200 ms to compile."""
_MEMORY_BYTES: Final = 256 * 1024
"""Of a compiled expression and of its cached states together: what needs more is refused, or matched more slowly."""
_MOST_COMPILED: Final = 256


def compile_pattern(text: str) -> Matcher:
    """The expression, ready to match. Raises KafkaError INVALID_REGULAR_EXPRESSION (128) with the reason.

    RE2 matches in time linear in the text: no expression keeps a broker busy, as Python's own backtracking engine
    would. Kafka matches with RE2/J, whose syntax this engine shares.
    A new pattern takes up to some 20 ms to compile.
    """
    check_length(text)
    return _compiled(text)


def check_length(text: str) -> None:
    """Whether there is too much of it to compile it at all. Raises KafkaError INVALID_REGULAR_EXPRESSION (128)."""
    if len(text) > LONGEST_PATTERN:
        raise _invalid(f"it has {len(text)} characters, and at most {LONGEST_PATTERN} are taken")
    classes = text.count(r"\p") + text.count(r"\P")
    if classes > _MOST_UNICODE_CLASSES:
        raise _invalid(f"it has {classes} Unicode classes, and at most {_MOST_UNICODE_CLASSES} are taken")


@lru_cache(maxsize=_MOST_COMPILED)
def _compiled(text: str) -> Matcher:
    import re2  # the first expression pays for the library, not the start of every node

    options = re2.Options()
    options.max_mem = _MEMORY_BYTES
    options.log_errors = False
    options.never_capture = True
    try:
        pattern = re2.compile(text.encode(), options)
    except re2.error as fault:
        reason = fault.args[0] if fault.args else "it cannot be compiled"
        raise _invalid(reason.decode(errors="replace") if isinstance(reason, bytes) else str(reason)) from None
    return lambda name: pattern.fullmatch(name) is not None


def _invalid(reason: str) -> KafkaError:
    return KafkaError(ErrorCode.INVALID_REGULAR_EXPRESSION, f"the regular expression is not valid (RE2): {reason}")


OnResolved = Callable[[KafkaError | None], None]

_NAMES_PER_TURN: Final = 1000
"""About 2 us each."""
_TURN_MS: Final = 5
_NAMES_PER_LOOK_AT_THE_CLOCK: Final = 8
"""The slowest expression that fits into its memory takes about 1 ms for a name."""
_SHORT_MS: Final = 50
"""An ordinary expression takes 20 for 10,000 topics. Those that take longer share every second turn."""
_MOST_NEW: Final = 128
"""Expressions that were never held against all topics yet; more than as many stay compiled."""
_MOST_NEW_OF_GROUPS: Final = 32
"""Of these, those that only groups ask for: there is always room for requests, which have to be answered."""
_MOST_NEW_AND_LONG: Final = 32
"""Of these, those of requests that have taken longer than `_SHORT_MS`."""
_MOST_EXPRESSIONS: Final = 4096
_MOST_MATCHES: Final = 1_000_000
"""Names in all sets together, some 60 bytes each."""


class _Expression:
    """One expression, and the topics that it matches as far as they have been looked at."""

    __slots__ = (
        "fault",
        "is_changed",
        "is_new",
        "is_of_group",
        "names",
        "size_bytes",
        "spent_ms",
        "text",
        "topics",
        "value",
        "waiting",
    )

    def __init__(self, text: str, names: Iterable[str], *, is_of_group: bool) -> None:
        self.text = text
        self.names: deque[Iterator[str]] = deque((iter(names),))
        """Still to be looked at."""
        self.spent_ms = 0
        """On the names since there was last none to be looked at."""
        self.topics: set[str] = set()
        self.size_bytes = 0
        self.is_changed = False
        """Whether `topics` may be others than those of `value`."""
        self.is_new = True
        """Whether it was never held against all topics yet: there is neither value nor fault."""
        self.is_of_group = is_of_group
        """Whether a group that has it recorded wants to know; if not, it is wanted as long as requests wait."""
        self.value: RegularExpressionValue | None = None
        """The last complete result."""
        self.fault: KafkaError | None = None
        """The reason if there is none."""
        self.waiting: dict[OnResolved, None] = {}

    @property
    def is_resolved(self) -> bool:
        """Whether what it matches, or matched when it was last looked at, can be said."""
        return not self.names or (self.value is not None and self.fault is None)

    def add(self, name: str) -> int:
        """Returns the number of names that there are more."""
        if name in self.topics:
            return 0
        self.topics.add(name)
        self.size_bytes += len(name) + 1
        self.is_changed = True
        return 1

    def discard(self, name: str) -> int:
        """Returns the number of names that there are less."""
        if name not in self.topics:
            return 0
        self.topics.remove(name)
        self.size_bytes -= len(name) + 1
        self.is_changed = True
        return 1


class TopicPatterns:
    """The expressions of all groups of a node. `max_bytes` is what the names that one matches may take."""

    def __init__(self, *, clock: Clock, max_bytes: int) -> None:
        self._clock = clock
        self._max_bytes = max_bytes
        self._image = ClusterImage()
        self._expressions: OrderedDict[str, _Expression] = OrderedDict()
        """The one that was asked for last comes last."""
        self._short: OrderedDict[_Expression, None] = OrderedDict()
        """Those with names to be looked at, by turns; `_long`: those of them that have taken long."""
        self._long: OrderedDict[_Expression, None] = OrderedDict()
        self._new: dict[_Expression, None] = {}
        self._matches = 0
        self._is_in_turn = False
        self._is_turn_of_long = False
        self._until_ms = 0
        self._names_left = 0
        self._has_refused_group = False
        """Whether there was no room for the expression of a group, which asks again when `version` is another."""
        self.version = 0
        """Another number after each change of what any expression matches."""

    def resolve(self, text: str, on_resolved: OnResolved) -> None:
        """Have `find` know the expression; called once, now or later, with the reason if it does not.

        INVALID_REGULAR_EXPRESSION (128), or COORDINATOR_LOAD_IN_PROGRESS (14) when there is too much to do for it now;
        either may be raised instead.
        """
        expression = self._expressions.get(text)
        if expression is None:
            check_length(text)
            if len(self._new) >= _MOST_NEW:
                raise too_busy()
            expression = self._begin(text, is_of_group=False)
        self._expressions.move_to_end(text)
        expression.waiting[on_resolved] = None
        if expression.is_resolved:
            self._notify(expression, expression.fault)
        else:
            self._look()

    def forget(self, text: str, on_resolved: OnResolved) -> None:
        """The request has gone. An expression that no request waits for, and no group has, is dropped if it is new."""
        expression = self._expressions.get(text)
        if expression is not None:
            expression.waiting.pop(on_resolved, None)
            if expression.is_new and not expression.waiting and not expression.is_of_group:
                self._drop(expression)

    def find(self, text: str) -> RegularExpressionValue | None:
        """The topics that the expression matches; None while not known yet: `version` is another when they are."""
        expression = self._expressions.get(text)
        if expression is None:
            if sum(each.is_of_group for each in self._new) >= _MOST_NEW_OF_GROUPS or len(self._new) >= _MOST_NEW:
                self._has_refused_group = True
                return None
            expression = self._begin(text, is_of_group=True)
            self._look()
        else:
            self._expressions.move_to_end(text)
            expression.is_of_group = True
        return expression.value

    def on_image(self, image: ClusterImage, delta: ImageDelta) -> None:
        """The cluster's topics are these now."""
        self._image = image
        changed = [topic.name for topic in (*delta.created_topics, *delta.deleted_topics)]
        if not changed:
            return
        for expression in self._expressions.values():
            if not expression.names:
                self._short[expression] = None
            expression.names.append(iter(changed))
        self._look()

    def _begin(self, text: str, *, is_of_group: bool) -> _Expression:
        expression = _Expression(text, self._image.topics, is_of_group=is_of_group)
        self._expressions[text] = expression
        self._new[expression] = self._short[expression] = None
        return expression

    # Turns

    def _look(self) -> None:
        """Look at as many names as are left of this turn, and go on in the next."""
        if not (self._short or self._long):
            return
        if not self._is_in_turn:
            # However many expressions are new in one turn of the event loop, that is the time they have together.
            self._is_in_turn = True
            self._is_turn_of_long = not self._is_turn_of_long
            self._until_ms, self._names_left = self._clock.monotonic_ms() + _TURN_MS, _NAMES_PER_TURN
            self._clock.call_soon(self._go_on)
        looked_at: _Expression | None = None
        now_ms = self._clock.monotonic_ms()
        while (self._short or self._long) and self._names_left > 0 and now_ms < self._until_ms:
            looked_at, began_ms = self._next(), now_ms
            self._look_at_some(looked_at)
            now_ms = self._clock.monotonic_ms()
            looked_at.spent_ms += now_ms - began_ms
        if looked_at is not None and looked_at.names:
            self._put_back(looked_at)

    def _go_on(self) -> None:
        self._is_in_turn = False
        self._look()

    def _next(self) -> _Expression:
        first, second = (self._long, self._short) if self._is_turn_of_long else (self._short, self._long)
        return next(iter(first or second))

    def _put_back(self, expression: _Expression) -> None:
        """Its turn is over, and it is not: the others come first now."""
        if expression.is_new and self._matches > _MOST_MATCHES:
            self._make_room(expression)
            if self._matches > _MOST_MATCHES:
                self._give_up(expression)
                return
        if expression in self._long:
            self._long.move_to_end(expression)
        elif expression.spent_ms < _SHORT_MS:
            self._short.move_to_end(expression)
        elif expression.is_new and not expression.is_of_group and self._new_and_long() >= _MOST_NEW_AND_LONG:
            self._give_up(expression)
        else:
            del self._short[expression]
            self._long[expression] = None

    def _new_and_long(self) -> int:
        return sum(each.is_new and not each.is_of_group for each in self._long)

    def _look_at_some(self, expression: _Expression) -> None:
        try:
            matches, topics = compile_pattern(expression.text), self._image.topics
        except KafkaError as fault:
            # For a group: one that a Kafka broker took and this engine does not. The group keeps what it has recorded.
            self._drop(expression)
            expression.names.clear()
            self._notify(expression, fault)
            return
        for _ in range(_NAMES_PER_LOOK_AT_THE_CLOCK):
            self._names_left -= 1
            name = next(expression.names[0], None)
            if name is None:
                expression.names.popleft()
                if not expression.names:
                    self._finish(expression)
                    return
            elif name not in topics:
                self._matches -= expression.discard(name)
            elif name not in INTERNAL_TOPICS and matches(name.encode()):
                self._matches += expression.add(name)

    # Results

    def _finish(self, expression: _Expression) -> None:
        """All names are looked at: say so where that is news."""
        self._leave_turns(expression)
        before = expression.value
        if expression.size_bytes > self._max_bytes:
            detail = (
                f"the regular expression matches {len(expression.topics)} topics, whose names take more than "
                f"group.max.metadata.bytes={self._max_bytes}"
            )
            expression.fault = KafkaError(ErrorCode.INVALID_REGULAR_EXPRESSION, detail)
        else:
            expression.fault = None
        is_other = expression.is_changed and (before is None or expression.topics != set(before.topics))
        if expression.fault is None and (before is None or is_other):
            expression.value = RegularExpressionValue(
                topics=tuple(sorted(expression.topics)), timestamp=self._clock.now_ms()
            )
            self.version += 1
        expression.is_changed = expression.fault is not None
        self._make_room(expression)
        self._notify(expression, expression.fault)

    def _notify(self, expression: _Expression, fault: KafkaError | None) -> None:
        waiting, expression.waiting = expression.waiting, {}
        for on_resolved in waiting:
            on_resolved(fault)

    def _make_room(self, spared: _Expression) -> None:
        """Drop what was not asked for lately, but neither this one nor what is new."""
        if self._matches <= _MOST_MATCHES and len(self._expressions) <= _MOST_EXPRESSIONS:
            return
        for expression in list(self._expressions.values()):
            if self._matches <= _MOST_MATCHES and len(self._expressions) <= _MOST_EXPRESSIONS:
                return
            if expression is not spared and not expression.is_new and not expression.waiting:
                self._drop(expression)

    def _give_up(self, expression: _Expression) -> None:
        self._drop(expression)
        self._has_refused_group |= expression.is_of_group
        self._notify(expression, too_busy())

    def _drop(self, expression: _Expression) -> None:
        del self._expressions[expression.text]
        if expression.names and not expression.is_new:
            self.version += 1  # a group that waits for news of it asks for it anew
        self._matches -= len(expression.topics)
        self._leave_turns(expression)

    def _leave_turns(self, expression: _Expression) -> None:
        self._short.pop(expression, None)
        self._long.pop(expression, None)
        expression.spent_ms = 0
        if expression.is_new:
            expression.is_new = False
            del self._new[expression]
            if self._has_refused_group:
                self._has_refused_group = False
                self.version += 1


def too_busy() -> KafkaError:
    """COORDINATOR_LOAD_IN_PROGRESS (14), after which clients try again."""
    return KafkaError(
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        "this broker is held up by regular expressions that have not been matched before; try again later",
    )
