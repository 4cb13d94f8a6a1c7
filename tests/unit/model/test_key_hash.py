"""The hashes must be Kafka's to the bit, or keys and groups land elsewhere than every other client expects."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kafka.partitioner.default import murmur2 as kafka_python_murmur2

from tailrace.model.key_hash import coordinator_partition, java_string_hash, murmur2, partition_for_key


@pytest.mark.parametrize(
    ("key", "expected"),
    [
        (b"21", -973932308),
        (b"foobar", -790332482),
        (b"a-little-bit-long-string", -985981536),
        (b"a-little-bit-longer-string", -1486304829),
        (b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8", -58897971),
        (b"abc", 479470107),
        (b"", 275646681),
    ],
)
def test_murmur2_equals_the_values_that_kafkas_own_tests_fix(key: bytes, expected: int) -> None:
    assert murmur2(key) == expected


@given(st.binary(max_size=64))
def test_murmur2_equals_another_clients(key: bytes) -> None:
    assert murmur2(key) & 0xFFFFFFFF == kafka_python_murmur2(key) & 0xFFFFFFFF


@given(st.binary(max_size=64), st.integers(1, 1000))
def test_a_partition_lies_below_the_count(key: bytes, count: int) -> None:
    assert 0 <= partition_for_key(key, count) < count


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", 0),
        ("a", 97),
        ("hello", 99162322),
        ("polygenelubricants", -(2**31)),
        ("console-consumer-1", 35782224),
        ("Zählergruppe", 1534441590),
    ],
)
def test_java_string_hash_equals_javas(text: str, expected: int) -> None:
    assert java_string_hash(text) == expected
    assert coordinator_partition(text, 50) == (expected & 0x7FFFFFFF) % 50


def test_a_group_whose_hash_is_the_smallest_int_has_a_coordinator() -> None:
    assert coordinator_partition("polygenelubricants", 50) == 0


def test_java_string_hash_counts_utf16_units() -> None:
    assert java_string_hash("\U0001f600") == 1772899
