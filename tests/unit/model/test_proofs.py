import secrets
from uuid import UUID

import pytest

from tailrace.model.ids import format_topic_id
from tailrace.model.proofs import NO_SECRET, id_of_secret, may_speak_for, needs_secret

SECRET = b"sixteen bytes..."


def test_the_secret_of_an_id_may_speak_for_it() -> None:
    assert may_speak_for(id_of_secret(SECRET), SECRET)


@pytest.mark.parametrize("guess", [NO_SECRET, b"", b"sixteen bytes.,,", id_of_secret(SECRET), SECRET + b"."])
def test_no_other_bytes_speak_for_an_id(guess: bytes) -> None:
    """Not the id itself either, which stands in the metadata log."""
    assert not may_speak_for(id_of_secret(SECRET), guess)


def test_an_id_says_of_itself_that_a_secret_belongs_to_it() -> None:
    made = id_of_secret(SECRET)
    assert len(made) == 16
    assert needs_secret(made)
    assert format_topic_id(made).startswith("proof")
    assert UUID(bytes=made).version == 8


def test_each_bit_of_an_id_is_a_mark_or_of_the_hash() -> None:
    made = id_of_secret(SECRET)
    for bit in range(128):
        other = bytearray(made)
        other[bit // 8] ^= 1 << bit % 8
        assert not needs_secret(bytes(other)) or not may_speak_for(bytes(other), SECRET), bit


def test_ids_of_kafka_and_of_earlier_releases_need_no_secret() -> None:
    """Kafka's are random UUIDs, ours were random bytes; neither may be shut out by an update of the leader."""
    found = [secrets.token_bytes(16) for _ in range(10_000)]
    found += [UUID(bytes=raw, version=4).bytes for raw in found]
    assert not any(map(needs_secret, [*found, bytes(16), b"", b"i" * 16, id_of_secret(SECRET)[:15]]))
    assert may_speak_for(found[0], NO_SECRET)
