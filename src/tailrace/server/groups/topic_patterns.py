"""The topics that match the subscribed regular expressions of KIP-848, kept up to date as topics come and go.

1. An expression is matched with all topics once, and then with each topic that is created or deleted. The work is done
   in slices between other work, and expressions take turns, so that a slow expression does not delay the rest.
2. Internal topics match no expression: a group that reads the log of its own commits would always find new records.
3. When there are too many expressions, the expressions that were not used lately are dropped, and resolved again at the
   next use.
"""

import re
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator
from functools import lru_cache
from typing import Final

from tailrace.coordinators.groups.consumer_records import RegularExpressionValue
from tailrace.metadata.image import ClusterImage, ImageDelta
from tailrace.model.errors import ErrorCode, KafkaError
from tailrace.model.partitions import INTERNAL_TOPICS
from tailrace.server.callbacks import SLICE_MS, call_each
from tailrace.server.ports import Clock

Matcher = Callable[[bytes], bool]
"""Returns whether the expression matches the whole of a text in UTF-8."""

LONGEST_WITH_COUNTS: Final = 4096
"""The most characters of an expression with counted repetitions, which multiply each other. Other expressions may be as
long as a string of a request: clients may list the topics that they read in one expression."""
_COUNT: Final = re.compile(r"\{\d")
_MOST_UNICODE_CLASSES: Final = 16
"""The most Unicode classes of an expression: a class has hundreds of ranges, and a thousand classes take 200 ms to
compile."""
_MEMORY_BYTES: Final = 256 * 1024
"""The memory limit of a compiled expression: an expression that needs more is refused, or matched more slowly."""
_MEMORY_OF_LONG: Final = 1024 * 1024
_MOST_COMPILED: Final = 256
_MOST_LONG_COMPILED: Final = 32


def compile_pattern(text: str) -> Matcher:
    """Compile the expression. Raises KafkaError INVALID_REGULAR_EXPRESSION (128) with the reason.

    RE2 matches in time linear in the text, unlike Python's backtracking engine: no expression blocks a broker. Kafka
    matches with RE2/J, which has the same syntax. A new pattern takes up to some 20 ms to compile.
    """
    check_length(text)
    return _compiled(text) if len(text) <= LONGEST_WITH_COUNTS else _compiled_long(text)


def check_length(text: str) -> None:
    """Raises KafkaError INVALID_REGULAR_EXPRESSION (128) if the expression is too large to be compiled."""
    if len(text) > LONGEST_WITH_COUNTS and _COUNT.search(text) is not None:
        raise _invalid(
            f"it has {len(text)} characters; with counted repetitions at most {LONGEST_WITH_COUNTS} are taken"
        )
    classes = text.count(r"\p") + text.count(r"\P")
    if classes > _MOST_UNICODE_CLASSES:
        raise _invalid(f"it has {classes} Unicode classes, and at most {_MOST_UNICODE_CLASSES} are taken")


@lru_cache(maxsize=_MOST_COMPILED)
def _compiled(text: str) -> Matcher:
    return _compile(text, _MEMORY_BYTES)


@lru_cache(maxsize=_MOST_LONG_COMPILED)
def _compiled_long(text: str) -> Matcher:
    return _compile(text, _MEMORY_OF_LONG)


def _compile(text: str, memory_bytes: int) -> Matcher:
    import re2  # imported at the first expression, not at the start of every node

    options = re2.Options()
    options.max_mem = memory_bytes
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
"""The most names that are checked in a turn; about 2 us per name."""
_NAMES_PER_LOOK_AT_THE_CLOCK: Final = 8
"""The names between two looks at the clock: the slowest expression within the memory limit takes about 1 ms for a
name."""
_SHORT_MS: Final = 50
"""The time limit of short expressions; an ordinary expression takes 20 ms for 10,000 topics. Expressions above this
limit share every second turn."""
_MOST_NEW: Final = 128
"""The most new expressions, which are not yet matched with all topics; less than the number of expressions that stay
compiled."""
_MOST_NEW_OF_GROUPS: Final = 32
"""The most new expressions that only groups use, so that room is left for new expressions of requests."""
_MOST_NEW_AND_LONG: Final = 32
"""The most new expressions of requests that have taken longer than `_SHORT_MS`."""
_MOST_EXPRESSIONS: Final = 4096
_MOST_MATCHES: Final = 1_000_000
"""The most matches of all expressions together, some 60 bytes per match."""


class _Expression:
    """An expression, and its matches among the names that were checked so far."""

    __slots__ = (
        "fault",
        "is_changed",
        "is_for_group",
        "is_new",
        "names",
        "size_bytes",
        "spent_ms",
        "text",
        "topics",
        "value",
        "waiting",
    )

    def __init__(self, text: str, names: Iterable[str], *, is_for_group: bool) -> None:
        self.text = text
        self.names: deque[Iterator[str]] = deque((iter(names),))
        """Names that are still to be checked."""
        self.spent_ms = 0
        """The time spent on the expression since `names` was last empty."""
        self.topics: set[str] = set()
        self.size_bytes = 0
        self.is_changed = False
        """Whether `topics` may differ from the topics of `value`."""
        self.is_new = True
        """Whether the expression has not been matched with all topics yet: then there is neither value nor fault."""
        self.is_for_group = is_for_group
        """Whether a group has recorded the expression; if not, only waiting requests need the expression."""
        self.value: RegularExpressionValue | None = None
        """The last complete result."""
        self.fault: KafkaError | None = None
        """The reason if there is no complete result."""
        self.waiting: dict[OnResolved, None] = {}

    @property
    def is_resolved(self) -> bool:
        """Whether there is a result: of this check, or of the last complete check."""
        return not self.names or (self.value is not None and self.fault is None)

    def add(self, name: str) -> int:
        """Add a match; returns by how many the matches grow."""
        if name in self.topics:
            return 0
        self.topics.add(name)
        self.size_bytes += len(name) + 1
        self.is_changed = True
        return 1

    def discard(self, name: str) -> int:
        """Remove a match; returns by how many the matches shrink."""
        if name not in self.topics:
            return 0
        self.topics.remove(name)
        self.size_bytes -= len(name) + 1
        self.is_changed = True
        return 1


class TopicPatterns:
    """The expressions of all groups of a node. `max_bytes` limits the names that one expression matches."""

    def __init__(self, *, clock: Clock, max_bytes: int) -> None:
        self._clock = clock
        self._max_bytes = max_bytes
        self._image = ClusterImage()
        self._expressions: OrderedDict[str, _Expression] = OrderedDict()
        """The expression that was used last comes last."""
        self._short: OrderedDict[_Expression, None] = OrderedDict()
        """Expressions with names to check, in order of their turns; `_long` has the slow expressions."""
        self._long: OrderedDict[_Expression, None] = OrderedDict()
        self._new: dict[_Expression, None] = {}
        self._matches = 0
        self._is_in_turn = False
        self._is_turn_of_long = False
        self._until_ms = 0
        self._names_left = 0
        self._has_refused_group = False
        """Whether the expression of a group was refused; the group tries again when `version` has changed."""
        self.version = 0
        """A number that rises at each change of the matches of an expression."""

    def resolve(self, text: str, on_resolved: OnResolved) -> None:
        """Resolve the expression for `find`. `on_resolved` is called once, now or later, with the error if it failed.

        The error is INVALID_REGULAR_EXPRESSION (128), or COORDINATOR_LOAD_IN_PROGRESS (14) if there is too much work
        now; either error may also be raised by `resolve` itself.
        """
        expression = self._expressions.get(text)
        if expression is None:
            check_length(text)
            if len(self._new) >= _MOST_NEW:
                raise too_busy()
            expression = self._begin(text, is_for_group=False)
        self._expressions.move_to_end(text)
        expression.waiting[on_resolved] = None
        if expression.is_resolved:
            self._notify(expression, expression.fault)
        else:
            self._look()

    def forget(self, text: str, on_resolved: OnResolved) -> None:
        """Forget a request whose client has gone. A new expression without waiting requests and groups is dropped."""
        expression = self._expressions.get(text)
        if expression is not None:
            expression.waiting.pop(on_resolved, None)
            if expression.is_new and not expression.waiting and not expression.is_for_group:
                self._drop(expression)

    def find(self, text: str) -> RegularExpressionValue | None:
        """The topics that the expression matches; None until the expression is resolved, which changes `version`."""
        expression = self._expressions.get(text)
        if expression is None:
            if sum(each.is_for_group for each in self._new) >= _MOST_NEW_OF_GROUPS or len(self._new) >= _MOST_NEW:
                self._has_refused_group = True
                return None
            expression = self._begin(text, is_for_group=True)
            self._look()
        else:
            self._expressions.move_to_end(text)
            expression.is_for_group = True
        return expression.value

    def on_image(self, image: ClusterImage, delta: ImageDelta) -> None:
        """Check the created and the deleted topics."""
        self._image = image
        changed = [topic.name for topic in (*delta.created_topics, *delta.deleted_topics)]
        if not changed:
            return
        for expression in self._expressions.values():
            if not expression.names:
                self._short[expression] = None
            expression.names.append(iter(changed))
        self._look()

    def _begin(self, text: str, *, is_for_group: bool) -> _Expression:
        expression = _Expression(text, self._image.topics, is_for_group=is_for_group)
        self._expressions[text] = expression
        self._new[expression] = self._short[expression] = None
        return expression

    # Turns

    def _look(self) -> None:
        """Check names within this turn, and go on in the next turn."""
        if not (self._short or self._long):
            return
        if not self._is_in_turn:
            # All new expressions of one turn of the event loop share the time of that turn.
            self._is_in_turn = True
            self._is_turn_of_long = not self._is_turn_of_long
            self._until_ms, self._names_left = self._clock.monotonic_ms() + SLICE_MS, _NAMES_PER_TURN
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
        """Put an incomplete expression behind the other expressions: its turn is over."""
        if expression.is_new and self._matches > _MOST_MATCHES:
            self._evict(expression)
            if self._matches > _MOST_MATCHES:
                self._give_up(expression)
                return
        if expression in self._long:
            self._long.move_to_end(expression)
        elif expression.spent_ms < _SHORT_MS:
            self._short.move_to_end(expression)
        elif expression.is_new and not expression.is_for_group and self._new_and_long() >= _MOST_NEW_AND_LONG:
            self._give_up(expression)
        else:
            del self._short[expression]
            self._long[expression] = None

    def _new_and_long(self) -> int:
        return sum(each.is_new and not each.is_for_group for each in self._long)

    def _look_at_some(self, expression: _Expression) -> None:
        try:
            matches, topics = compile_pattern(expression.text), self._image.topics
        except KafkaError as fault:
            # A group may have an expression that only Kafka's engine accepts. The group keeps its recorded matches.
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
        """Record the result when all names are checked, and notify the waiting requests."""
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
        self._evict(expression)
        self._notify(expression, expression.fault)

    def _notify(self, expression: _Expression, fault: KafkaError | None) -> None:
        waiting, expression.waiting = expression.waiting, {}
        call_each(lambda on_resolved: on_resolved(fault), waiting)

    def _evict(self, spared: _Expression) -> None:
        """Drop expressions that were not used lately; the expression `spared`, new expressions and awaited expressions
        stay."""
        if self._matches <= _MOST_MATCHES and len(self._expressions) <= _MOST_EXPRESSIONS:
            return
        for expression in list(self._expressions.values()):
            if self._matches <= _MOST_MATCHES and len(self._expressions) <= _MOST_EXPRESSIONS:
                return
            if expression is not spared and not expression.is_new and not expression.waiting:
                self._drop(expression)

    def _give_up(self, expression: _Expression) -> None:
        self._drop(expression)
        self._has_refused_group |= expression.is_for_group
        self._notify(expression, too_busy())

    def _drop(self, expression: _Expression) -> None:
        del self._expressions[expression.text]
        if expression.names and not expression.is_new:
            self.version += 1  # a group that waits for the expression uses it again
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
