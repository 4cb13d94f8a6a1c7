"""The topics that regular expressions match: searched in several turns, later only among topics that change."""

from collections.abc import Iterable
from functools import partial

import pytest

from tailrace.metadata.image import ClusterImage, ImageDelta, TopicImage
from tailrace.model.errors import ErrorCode, KafkaError
from tailrace.model.ids import TopicId
from tailrace.model.partitions import GROUP_OFFSETS_TOPIC
from tailrace.server.groups import topic_patterns
from tailrace.server.groups.topic_patterns import Matcher, TopicPatterns, compile_pattern
from tailrace.testing.clock import ManualClock


class _Topics:
    """Topics as a cluster has them, and a clock that says how many turns were taken."""

    def __init__(self, names: Iterable[str] = (), *, max_bytes: int = 1 << 20) -> None:
        self.clock = ManualClock()
        self.patterns = TopicPatterns(clock=self.clock, max_bytes=max_bytes)
        self._topics: dict[str, TopicImage] = {}
        self.change(created=names)

    def change(self, *, created: Iterable[str] = (), deleted: Iterable[str] = ()) -> None:
        gone = tuple(self._topics[name] for name in deleted)
        came = tuple(
            TopicImage(topic_id=TopicId(name.encode().ljust(16)[:16]), name=name, partitions={}) for name in created
        )
        left = {name: topic for name, topic in self._topics.items() if topic not in gone}
        self._topics = {**left, **{topic.name: topic for topic in came}}
        self.patterns.on_image(ClusterImage(topics=self._topics), ImageDelta(created_topics=came, deleted_topics=gone))

    def resolve(self, text: str) -> ErrorCode | None:
        """The answer that the request gets at once; None if it waits."""
        outcomes: list[KafkaError | None] = []
        try:
            self.patterns.resolve(text, outcomes.append)
        except KafkaError as refusal:
            return refusal.code
        return (ErrorCode.NONE if outcomes[0] is None else outcomes[0].code) if outcomes else None

    def found(self, text: str) -> tuple[str, ...] | None:
        value = self.patterns.find(text)
        return None if value is None else value.topics


def test_an_expression_is_resolved_and_kept_up_to_date() -> None:
    topics = _Topics(["a1", "b1", GROUP_OFFSETS_TOPIC])
    outcomes: list[KafkaError | None] = []
    topics.patterns.resolve("a.*|__.*", outcomes.append)
    assert (outcomes, topics.found("a.*|__.*")) == ([None], ("a1",))
    before = topics.patterns.version
    topics.change(created=["c1"])
    assert topics.patterns.version == before, "nothing that matters has changed"
    topics.change(created=["a2"], deleted=["a1"])
    assert topics.patterns.version > before
    assert topics.found("a.*|__.*") == ("a2",)


def test_a_topic_that_was_made_anew_under_its_name_still_matches() -> None:
    topics = _Topics(["a1"])
    assert topics.found("a.*") == ("a1",)
    topics.change(created=["a1"], deleted=["a1"])
    assert topics.found("a.*") == ("a1",)


def test_many_topics_are_looked_at_in_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(topic_patterns, "_NAMES_PER_TURN", 16)
    topics = _Topics([f"t{number}" for number in range(100)])
    turns = 0

    def count() -> None:
        nonlocal turns
        turns += 1

    outcomes: list[KafkaError | None] = []
    topics.clock.on_turn_end = count
    topics.patterns.resolve("t.*5", outcomes.append)
    assert (outcomes, topics.found("t.*5")) == ([], None), "that takes more than this turn"
    topics.change(created=["t105"], deleted=["t15"])
    topics.clock.advance(0)
    assert outcomes == [None]
    assert topics.found("t.*5") == tuple(sorted({f"t{n}5" for n in range(11)} - {"t15", "t05"} | {"t5"}))
    assert turns >= 5


def test_a_request_that_fails_keeps_no_other_from_its_result(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(topic_patterns, "_NAMES_PER_TURN", 16)
    topics, told = _Topics([f"t{number}" for number in range(20)]), list[KafkaError | None]()

    def fail(fault: KafkaError | None) -> None:
        raise ZeroDivisionError

    for on_resolved in (fail, told.append):
        topics.patterns.resolve("t.*5", on_resolved)
    assert told == []
    with pytest.raises(ZeroDivisionError):
        topics.clock.advance(0)
    assert told == [None]


def test_a_slow_turn_ends_early(monkeypatch: pytest.MonkeyPatch) -> None:
    topics = _Topics([f"t{number}" for number in range(100)])

    def slow(text: str) -> Matcher:
        def matches(name: bytes) -> bool:
            topics.clock._monotonic_ms += 1
            return True

        return matches

    monkeypatch.setattr(topic_patterns, "compile_pattern", slow)
    began = topics.clock.monotonic_ms()
    assert topics.found("t.*") is None
    assert topics.clock.monotonic_ms() - began <= 8, "names are looked at until 5 ms are over"
    topics.clock.advance(1_000)
    assert len(topics.found("t.*") or ()) == 100


def test_an_expression_with_too_many_matches_keeps_its_last_result() -> None:
    topics = _Topics(["a1"], max_bytes=8)
    assert topics.found("a.*") == ("a1",)
    topics.change(created=["a2", "a3"])
    outcomes: list[KafkaError | None] = []
    topics.patterns.resolve("a.*", outcomes.append)
    assert [fault.code for fault in outcomes if fault] == [ErrorCode.INVALID_REGULAR_EXPRESSION]
    assert topics.found("a.*") == ("a1",)
    topics.change(deleted=["a2"])
    topics.patterns.resolve("a.*", outcomes.append)
    assert (outcomes[1:], topics.found("a.*")) == ([None], ("a1", "a3"))


def test_old_expressions_make_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(topic_patterns, "_MOST_EXPRESSIONS", 2)
    topics = _Topics(["a", "b", "c"])
    for text in ("a", "b", "a", "c"):
        assert topics.found(text) == (text,)
    assert list(topics.patterns._expressions) == ["a", "c"]
    assert topics.found("b") == ("b",)


@pytest.mark.parametrize("text", ["(", "a**", "(?=a)", r"\1", "((a{100}){100}){100}", "x" * 4093 + "x{2}", r"\pL" * 17])
def test_an_expression_that_re2_cannot_compile_is_refused(text: str) -> None:
    topics = _Topics(["a"])
    assert topics.resolve(text) == ErrorCode.INVALID_REGULAR_EXPRESSION
    assert topics.found(text) is None, "a bad expression that is stored anyway does no harm"
    topics.clock.advance(0)
    assert not topics.patterns._expressions


def test_an_expression_may_name_hundreds_of_topics() -> None:
    """Kafka takes any length. A pattern is often the list of the topics that an application reads."""
    names = [f"orders.{number:04}.{'x' * 50}" for number in range(500)]
    topics = _Topics([*names, "orders"])
    text = "|".join(name.replace(".", "[.]") for name in names)
    assert len(text) > 32_000
    assert topics.resolve(text) == ErrorCode.NONE
    assert topics.found(text) == tuple(names)


def test_an_expression_that_explodes_elsewhere_is_matched_in_linear_time() -> None:
    """With backtracking this takes longer than the universe has existed."""
    assert not compile_pattern("(a*)*(a*)*(a*)*b")(b"a" * 249)
    assert compile_pattern("(?:x|[é])+")("xé".encode())


class _SlowMatches:
    """Takes 1 ms for a name, unless the expression begins with `quick`; counts."""

    def __init__(self, topics: _Topics, monkeypatch: pytest.MonkeyPatch) -> None:
        self._topics = topics
        self.count = 0
        monkeypatch.setattr(topic_patterns, "compile_pattern", self._compile)

    def _compile(self, text: str) -> Matcher:
        def matches(name: bytes) -> bool:
            self.count += 1
            self._topics.clock._monotonic_ms += 1
            return True

        return (lambda name: True) if text.startswith("quick") else matches


def _names(count: int) -> list[str]:
    return [f"t{number}" for number in range(count)]


def test_expressions_that_take_long_do_not_keep_others_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    topics = _Topics(_names(2_000))
    slow = _SlowMatches(topics, monkeypatch)
    for number in range(10):
        topics.patterns.resolve(f"slow{number}", lambda fault: None)
    looked_at: list[int] = []
    topics.patterns.resolve("quick", lambda fault: looked_at.append(slow.count))
    topics.clock.advance(60_000)
    assert looked_at[0] <= 500, "of 20,000: each of those before it has a few turns"
    assert slow.count == 20_000, "none is forgotten"


def test_expressions_that_come_in_one_turn_share_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    topics = _Topics(_names(100))
    slow = _SlowMatches(topics, monkeypatch)
    for number in range(64):
        topics.patterns.resolve(f"slow{number}", lambda fault: None)
    assert slow.count <= 8, "a client that asks for 64 at once must not hold up a turn for 64 times 5 ms"


def test_the_number_of_new_expressions_is_limited() -> None:
    topics = _Topics(_names(1_100))
    assert topics.resolve("first") is None
    topics.clock.advance(0)
    codes = [topics.resolve(f"a{number}") for number in range(200)]
    assert codes.count(None) == 128
    assert set(codes[128:]) == {ErrorCode.COORDINATOR_LOAD_IN_PROGRESS}
    assert topics.resolve("first") == ErrorCode.NONE, "a known result is given at once"
    assert topics.resolve("a0") is None, "and a search that is under way may be waited for"
    topics.clock.advance(0)
    assert topics.resolve("a199") is None


def test_the_number_of_new_and_slow_expressions_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    topics = _Topics(_names(2_000))
    _SlowMatches(topics, monkeypatch)
    monkeypatch.setattr(topic_patterns, "_MOST_NEW_AND_LONG", 2)
    outcomes: dict[int, KafkaError | None] = {}
    for number in range(4):
        topics.patterns.resolve(f"slow{number}", partial(outcomes.__setitem__, number))
    topics.clock.advance(60_000)
    given_up = {number: fault.code for number, fault in outcomes.items() if fault is not None}
    assert given_up == dict.fromkeys((2, 3), ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
    assert sorted(outcomes) == [0, 1, 2, 3]


def test_an_expression_without_waiting_requests_is_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    topics = _Topics(_names(2_000))
    slow = _SlowMatches(topics, monkeypatch)
    outcomes: list[KafkaError | None] = []
    others: list[KafkaError | None] = []
    topics.patterns.resolve("slow", outcomes.append)
    topics.patterns.resolve("slow", others.append)
    topics.patterns.forget("slow", outcomes.append)
    assert "slow" in topics.patterns._expressions, "another request waits for it"
    topics.patterns.forget("slow", others.append)
    assert not topics.patterns._expressions
    before = slow.count
    topics.clock.advance(60_000)
    assert (slow.count, outcomes, others) == (before, [], [])


def test_an_expression_that_a_group_has_recorded_is_resolved_to_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    topics = _Topics(_names(2_000))
    _SlowMatches(topics, monkeypatch)
    outcomes: list[KafkaError | None] = []
    topics.patterns.resolve("slow", outcomes.append)
    assert topics.found("slow") is None
    topics.patterns.forget("slow", outcomes.append)
    topics.clock.advance(60_000)
    assert len(topics.found("slow") or ()) == 2_000


def test_the_version_changes_when_there_is_room_for_a_groups_expression() -> None:
    topics = _Topics(_names(1_100))
    topics.found("first")
    groups = [f"g{number}" for number in range(60)]
    for _ in range(3):
        asked_at = topics.patterns.version
        found = [topics.found(text) for text in groups]
        assert len(topics.patterns._new) <= 33, "requests are to find room beside the groups"
        topics.clock.advance(0)
        if None in found:
            assert topics.patterns.version != asked_at
    assert found == [()] * 60


def test_deleted_topics_are_taken_out_in_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    topics = _Topics(_names(20))
    expressions = [f"t.*|{number}" for number in range(50)]
    for text in expressions:
        assert len(topics.found(text) or ()) == 20
        topics.clock.advance(0)
    monkeypatch.setattr(topic_patterns, "_NAMES_PER_TURN", 16)
    topics.change(deleted=["t3"])
    are_done = ["t3" not in (topics.found(text) or ()) for text in expressions]
    assert 0 < are_done.count(True) <= 16, "as many names as fit into a turn"
    topics.clock.advance(0)
    assert all("t3" not in (topics.found(text) or ("t3",)) for text in expressions)


def test_the_matches_of_new_expressions_are_limited_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(topic_patterns, "_MOST_MATCHES", 150)
    monkeypatch.setattr(topic_patterns, "_NAMES_PER_TURN", 40)
    topics = _Topics(_names(100))
    outcomes: list[KafkaError | None] = []
    for number in range(10):
        topics.patterns.resolve(f"t.*|{number}", outcomes.append)  # all grow side by side
    topics.patterns.resolve("t.*|x", lambda fault: outcomes.append(fault))
    topics.clock.advance(0)
    assert len([fault for fault in outcomes if fault is not None]) >= 1
    assert topics.patterns._matches <= 150
    assert topics.patterns._matches == sum(len(each.topics) for each in topics.patterns._expressions.values())
