import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.model.ids import METADATA_TOPIC_ID, format_topic_id, parse_topic_id
from tailrace.model.partitions import topic_name_fault


def test_the_metadata_topics_id_prints_as_kafka_prints_it() -> None:
    assert format_topic_id(METADATA_TOPIC_ID) == "AAAAAAAAAAAAAAAAAAAAAQ"


@given(st.binary(min_size=16, max_size=16))
def test_an_id_survives_its_text(raw: bytes) -> None:
    assert parse_topic_id(format_topic_id(raw)) == raw


def test_a_text_for_fewer_bytes_is_no_id() -> None:
    with pytest.raises(ValueError, match="3 bytes"):
        parse_topic_id("AAAA")


@pytest.mark.parametrize("name", ["", ".", "..", "a" * 250, "a/b", "über", "a b", "a\0"])
def test_an_illegal_topic_name_is_refused_with_a_reason(name: str) -> None:
    assert topic_name_fault(name)


@pytest.mark.parametrize("name", ["a", "a" * 249, "A.b_c-9", "...", "__consumer_offsets"])
def test_a_legal_topic_name_has_no_fault(name: str) -> None:
    assert topic_name_fault(name) is None
