"""The names of sinks and of their members."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.model.errors import ErrorCode, KafkaError
from tailrace.model.sinks import (
    LAST_BATCH,
    LONGEST_MEMBER,
    LONGEST_RUN,
    LONGEST_SINK,
    SinkMember,
    check_run,
    check_sink,
    coordinator_key,
    find_member,
    is_reserved_for_sinks,
    parse_member,
    sink_key,
    sink_of_key,
)

NAMES = st.text("abcXYZ019._-", min_size=1, max_size=12)
MEMBERS = st.builds(
    SinkMember, NAMES, NAMES, st.integers(0, LAST_BATCH), st.integers(0, 2**31 - 1), st.integers(0, 2**31 - 1)
)


@given(member=MEMBERS)
def test_a_member_is_parsed_as_it_was_formatted(member: SinkMember) -> None:
    assert parse_member(member.transactional_id) == member
    assert find_member(member.transactional_id) == member


@given(member=MEMBERS)
def test_all_of_a_sink_have_one_coordinator(member: SinkMember) -> None:
    assert coordinator_key(member.transactional_id) == sink_key(member.sink) == coordinator_key(sink_key(member.sink))
    assert sink_of_key(sink_key(member.sink)) == member.sink
    assert sink_of_key(member.transactional_id) is None


def test_the_form_is_fixed() -> None:
    assert SinkMember("orders", "r1", 5, 2, 0).transactional_id == "__tailrace_sink/orders/r1/5/2.0"


def test_the_longest_member_has_the_longest_parts() -> None:
    member = SinkMember("s" * LONGEST_SINK, "r" * LONGEST_RUN, LAST_BATCH, 2**31 - 1, 2**31 - 1)
    assert len(member.transactional_id) == LONGEST_MEMBER


@pytest.mark.parametrize(
    "malformed",
    [
        "__tailrace_sink/",
        "__tailrace_sink/s",
        "__tailrace_sink/s/r/1/2",
        "__tailrace_sink/s/r/1/2.3.4",
        "__tailrace_sink/s/r/1/2.3/",
        "__tailrace_sink/s/r/1/2.3\n",
        "__tailrace_sink//r/1/2.3",
        "__tailrace_sink/s/r/-1/2.3",
        "__tailrace_sink/s/r/01/2.3",
        "__tailrace_sink/s/r/1/02.3",
        "__tailrace_sink/s/r/1/2.\N{ARABIC-INDIC DIGIT THREE}",
        "__tailrace_sink/s p/r/1/2.3",
        f"__tailrace_sink/s/r/{LAST_BATCH + 1}/2.3",
        f"__tailrace_sink/{'s' * (LONGEST_SINK + 1)}/r/1/2.3",
        f"__tailrace_sink/s/{'r' * (LONGEST_RUN + 1)}/1/2.3",
    ],
)
def test_a_malformed_id_of_a_sink_member_is_refused(malformed: str) -> None:
    assert is_reserved_for_sinks(malformed)
    assert find_member(malformed) is None
    with pytest.raises(KafkaError) as refusal:
        parse_member(malformed)
    assert refusal.value.code is ErrorCode.INVALID_REQUEST


@pytest.mark.parametrize("other", ["pay", "", "tailrace_sink/s/r/1/2.3", "x__tailrace_sink/s/r/1/2.3"])
def test_any_other_id_is_as_before(other: str) -> None:
    assert not is_reserved_for_sinks(other)
    assert find_member(other) is None
    assert sink_of_key(other) is None
    assert coordinator_key(other) == other


@pytest.mark.parametrize("sink", ["", "a/b", "a b", "s" * (LONGEST_SINK + 1), "\N{GREEK SMALL LETTER ALPHA}", "a\n"])
def test_a_sink_id_has_letters_digits_and_few_signs(sink: str) -> None:
    with pytest.raises(KafkaError, match="sink id"):
        check_sink(sink)
    with pytest.raises(KafkaError, match="sink id|is not"):
        assert SinkMember(sink, "r", 0, 0, 0).transactional_id


def test_the_longest_names_are_taken() -> None:
    check_sink("s" * LONGEST_SINK)
    check_run("r" * LONGEST_RUN)
    with pytest.raises(KafkaError, match="a run has 1 to 100"):
        check_run("r" * (LONGEST_RUN + 1))
