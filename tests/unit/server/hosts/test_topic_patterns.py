"""Which topics regular expressions match: in turns, and from then on by what changes."""

from collections.abc import Iterable

import pytest

from tailrace.metadata.image import ClusterImage, ImageDelta, TopicImage
from tailrace.model.errors import ErrorCode, KafkaError
from tailrace.model.ids import TopicId
from tailrace.model.partitions import GROUP_OFFSETS_TOPIC
from tailrace.server.hosts import topic_patterns
from tailrace.server.hosts.topic_patterns import TopicPatterns
from tailrace.server.patterns import Matcher, compile_pattern
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

    def found(self, text: str) -> tuple[str, ...] | None:
        value = self.patterns.find(text)
        return None if value is None else value.topics


def test_what_is_asked_for_is_found_and_kept_up_to_date() -> None:
    topics = _Topics(["a1", "b1", GROUP_OFFSETS_TOPIC])
    told: list[KafkaError | None] = []
    topics.patterns.resolve("a.*|__.*", told.append)
    assert (told, topics.found("a.*|__.*")) == ([None], ("a1",))
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

    told: list[KafkaError | None] = []
    topics.clock.on_turn_end = count
    topics.patterns.resolve("t.*5", told.append)
    assert (told, topics.found("t.*5")) == ([], None), "that takes more than this turn"
    topics.change(created=["t105"], deleted=["t15"])
    topics.clock.advance(0)
    assert told == [None]
    assert topics.found("t.*5") == tuple(sorted({f"t{n}5" for n in range(11)} - {"t15", "t05"} | {"t5"}))
    assert turns >= 5


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


def test_what_matches_too_much_keeps_what_it_had() -> None:
    topics = _Topics(["a1"], max_bytes=8)
    assert topics.found("a.*") == ("a1",)
    topics.change(created=["a2", "a3"])
    told: list[KafkaError | None] = []
    topics.patterns.resolve("a.*", told.append)
    assert [fault.code for fault in told if fault] == [ErrorCode.INVALID_REGULAR_EXPRESSION]
    assert topics.found("a.*") == ("a1",)
    topics.change(deleted=["a2"])
    topics.patterns.resolve("a.*", told.append)
    assert (told[1:], topics.found("a.*")) == ([None], ("a1", "a3"))


def test_old_expressions_make_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(topic_patterns, "_MOST_EXPRESSIONS", 2)
    topics = _Topics(["a", "b", "c"])
    for text in ("a", "b", "a", "c"):
        assert topics.found(text) == (text,)
    assert list(topics.patterns._expressions) == ["a", "c"]
    assert topics.found("b") == ("b",)


@pytest.mark.parametrize("text", ["(", "a**", "(?=a)", r"\1", "((a{100}){100}){100}", "x" * 4097])
def test_what_re2_does_not_take_is_refused(text: str) -> None:
    topics = _Topics(["a"])
    with pytest.raises(KafkaError) as refused:
        topics.patterns.resolve(text, lambda fault: None)
    assert refused.value.code is ErrorCode.INVALID_REGULAR_EXPRESSION
    assert topics.found(text) is None, "one that is stored all the same does no harm"


def test_an_expression_that_explodes_elsewhere_is_matched_in_linear_time() -> None:
    """With backtracking this takes longer than the universe has existed."""
    assert not compile_pattern("(a*)*(a*)*(a*)*b")(b"a" * 249)
    assert compile_pattern("(?:x|[é])+")("xé".encode())
