import pickle
from collections.abc import Iterator
from typing import Any

import pytest

from tailrace.model.errors import ErrorCode, KafkaError, MalformedMessage
from tailrace.protocol.encoder import BY_REFERENCE_FROM
from tailrace.protocol.primitives import write_tag_section
from tailrace.protocol.schema import (
    ZERO_UUID,
    Float64,
    Int8,
    Int16,
    Int32,
    Int64,
    Records,
    Uuid,
    decode,
    decode_from,
    encode,
    encode_bytes,
    encode_in_steps,
    field,
    message,
    positional,
    protect_values,
    replace,
    struct,
    unknown_tags,
)


@struct
class Leg:
    """A part of a voyage."""

    port: str
    days: Int16 = field(versions="1+", default=7)


@struct
class Crew:
    captain: str = ""
    hands: Int32 = 0


@message(versions="0-3", flexible="2+")
class Voyage:
    """A field of every type that the wire knows."""

    number: Int32
    name: str | None = field(nullable="1+")
    express: bool = False
    draught: Float64 = 0.0
    legs: tuple[Leg, ...] = ()
    depths: tuple[Int16, ...] | None = None
    marks: tuple[Uuid, ...] = ()
    ports: tuple[str, ...] = field(versions="1+", default=())
    papers: bytes = b""
    cargo: Records = None
    crew: Crew | None = field(versions="3+", default=None)
    ship_id: Uuid = field(versions="2+", tag=1, default=ZERO_UUID)
    flags: tuple[str, ...] = field(versions="2+", tag=0, default=())
    reserve: Crew = field(versions="3+", tag=10_000, default=Crew())
    weight: Int64 = field(versions="0-1", default=-1)
    deck: Int8 = 0


@pytest.fixture(autouse=True)
def protected() -> Iterator[None]:
    protect_values()
    yield
    protect_values(False)


FULL = Voyage(
    number=7,
    name="Batavia",
    express=True,
    draught=5.5,
    legs=(Leg(port="Texel", days=3), Leg(port="Cape")),
    depths=(-1, 5),
    marks=(b"m" * 16,),
    ports=("a", ""),
    papers=b"deed",
    cargo=b"silver",
    crew=Crew(captain="Jacobsz", hands=341),
    ship_id=b"s" * 16,
    flags=("red",),
    reserve=Crew(captain="Pelsaert"),
    deck=-3,
)


@pytest.mark.parametrize("version", range(4))
def test_fields_that_a_version_has_survive_and_the_others_read_as_their_defaults(version: int) -> None:
    expected = replace(FULL, weight=-1)
    if version < 3:
        expected = replace(expected, crew=None, reserve=Crew())
    if version < 2:
        expected = replace(expected, ship_id=ZERO_UUID, flags=())
    if version < 1:
        expected = replace(expected, ports=(), legs=(Leg(port="Texel"), Leg(port="Cape")))
    assert decode(Voyage, version, encode_bytes(FULL, version)) == expected


def test_the_bytes_are_those_of_the_protocol_guide() -> None:
    small = Voyage(number=1, name="ab", depths=(2,), cargo=b"xyz")
    assert encode_bytes(small, 0) == bytes.fromhex(
        "00000001 0002 6162 00 0000000000000000 00000000 00000001 0002 00000000 00000000 00000003 78797a"
        "ffffffffffffffff 00"
    )
    assert encode_bytes(small, 3) == bytes.fromhex(
        "00000001 03 6162 00 0000000000000000 01 02 0002 01 01 01 04 78797a ff 00 00"
    )


@pytest.mark.parametrize(
    ("length", "varint"), [(0, "01"), (126, "7f"), (127, "8001"), (16_382, "ff7f"), (16_383, "808001")]
)
def test_a_length_is_a_varint_of_as_few_bytes_as_it_needs(length: int, varint: str) -> None:
    long = Voyage(number=1, name="a" * length)
    data = encode_bytes(long, 3)
    assert data[4 : 4 + len(varint) // 2 + length] == bytes.fromhex(varint) + b"a" * length
    assert decode(Voyage, 3, data) == long


def test_a_tagged_field_at_its_default_is_not_written() -> None:
    plain = Voyage(number=1, name="a")
    assert len(encode_bytes(plain, 3)) + 1 + 1 + 16 == len(encode_bytes(replace(plain, ship_id=b"x" * 16), 3))


def test_known_and_unknown_tagged_fields_are_written_in_order() -> None:
    data = encode_bytes(Voyage(number=1, name="a"), 2)
    tagged = write_tag_section([], ((1, b"i" * 16), (2, b"?"), (70_000, b"")))
    value = decode(Voyage, 2, data[:-1] + tagged)
    assert value.ship_id == b"i" * 16
    assert unknown_tags(value) == ((2, b"?"), (70_000, b""))
    assert encode_bytes(value, 2) == data[:-1] + tagged
    assert value != Voyage(number=1, name="a", ship_id=b"i" * 16)
    assert unknown_tags(replace(value, name="b")) == unknown_tags(value)


@pytest.mark.parametrize(
    ("section", "why"),
    [
        ("02 01 00 01 00", "follows"),
        ("02 02 00 01 00", "follows"),
        ("01 01 10", "too early"),
        ("01 00 02 01 00", "length"),
        ("7f", "length"),
        ("80 80 80 80 80 01", "32 bits"),
        ("ff ff ff ff 7f", "32 bits"),
    ],
)
def test_a_wrong_tag_section_is_malformed(section: str, why: str) -> None:
    data = encode_bytes(Voyage(number=1, name="a"), 2)[:-1] + bytes.fromhex(section)
    with pytest.raises(MalformedMessage, match=why):
        decode(Voyage, 2, data)


def test_records_and_long_bytes_are_not_copied() -> None:
    cargo, papers = bytearray(BY_REFERENCE_FROM), bytes(BY_REFERENCE_FROM)
    chunks = encode(replace(FULL, cargo=cargo, papers=papers), 1)
    assert [any(chunk is large for chunk in chunks) for large in (cargo, papers)] == [True, True]
    data = b"".join(chunks)
    read = decode(Voyage, 1, data)
    assert isinstance(read.cargo, memoryview)
    assert read.cargo.obj is data
    assert type(read.papers) is bytes


def test_short_records_are_joined_to_their_neighbours() -> None:
    assert len(encode(FULL, 3)) == 1


def test_a_message_can_be_read_from_the_middle_of_a_buffer() -> None:
    data = encode_bytes(FULL, 3)
    assert decode_from(Voyage, 3, b"--" + data + b"--", 2) == (decode(Voyage, 3, data), len(data) + 2)
    assert decode(Voyage, 3, bytearray(b"--" + data), 2) == decode(Voyage, 3, data)


@pytest.mark.parametrize(
    ("version", "change"),
    [
        (0, {"name": None}),
        (3, {"number": 1 << 31}),
        (3, {"ports": None}),
        (0, {"name": "x" * 40_000}),
        (3, {"name": "\ud800"}),
        (3, {"depths": (1 << 15,)}),
        (3, {"papers": None}),
    ],
)
def test_a_value_without_a_form_on_the_wire_is_refused(version: int, change: dict[str, object]) -> None:
    with pytest.raises(KafkaError, match="cannot be encoded") as refusal:
        encode(replace(FULL, **change), version)
    assert refusal.value.code == ErrorCode.INVALID_REQUEST


@pytest.mark.parametrize("version", [-1, 4])
def test_a_version_that_a_message_does_not_have_is_refused(version: int) -> None:
    for attempt in (lambda: encode(FULL, version), lambda: decode(Voyage, version, b"")):
        with pytest.raises(KafkaError, match="has versions 0 to 3") as refusal:
            attempt()
        assert refusal.value.code == ErrorCode.UNSUPPORTED_VERSION


def test_no_more_elements_are_made_than_the_budget_allows() -> None:
    data = encode_bytes(Voyage(number=1, name="a", depths=(1,) * 60, ports=("",) * 60), 3)
    assert decode(Voyage, 3, data, max_elements=120).ports == ("",) * 60
    with pytest.raises(MalformedMessage, match="length 60 is not possible"):
        decode(Voyage, 3, data, max_elements=119)


@pytest.mark.parametrize("count", ["7fffffff", "80000000", "fffffffe"])
def test_a_count_that_the_bytes_cannot_hold_is_malformed_at_once(count: str) -> None:
    prefix = encode_bytes(Voyage(number=1, name="a"), 0)[:16]
    with pytest.raises(MalformedMessage):
        decode(Voyage, 0, prefix + bytes.fromhex(count) + bytes(100))


def test_a_string_longer_than_kafka_allows_is_malformed() -> None:
    longest = encode_bytes(Voyage(number=1, name="x" * 32_767), 3)
    assert decode(Voyage, 3, longest).name == "x" * 32_767
    with pytest.raises(MalformedMessage, match="length 32768"):
        decode(Voyage, 3, encode_bytes(Voyage(number=1, name="x" * 32_768), 3))


def test_a_string_that_is_not_utf_8_is_malformed() -> None:
    with pytest.raises(MalformedMessage, match="UTF-8"):
        decode(Voyage, 0, b"\0\0\0\1\0\1\xff")


def test_values_are_values() -> None:
    twin = replace(FULL)
    assert twin == FULL
    assert hash(twin) == hash(FULL)
    assert twin != replace(FULL, number=8)
    assert Leg(port="a") != Crew()
    assert pickle.loads(pickle.dumps(FULL)) == FULL
    assert repr(Leg(port="Cape", days=2)) == "Leg(port='Cape', days=2)"


def test_protected_values_refuse_assignment() -> None:
    read = decode(Voyage, 3, encode_bytes(FULL, 3))
    values: tuple[Any, ...] = (FULL, read, Leg(port="a"))
    for value in values:
        with pytest.raises(AttributeError, match="cannot be assigned"):
            setattr(value, type(value).__slots__[0], 1)
        with pytest.raises(AttributeError, match="cannot be deleted"):
            delattr(value, type(value).__slots__[0])
        with pytest.raises(AttributeError):
            value.nonsense = 1


def test_wrong_arguments_are_refused() -> None:
    with pytest.raises(TypeError, match="name"):
        Voyage(number=1)  # type: ignore[call-arg]  # the mistake
    with pytest.raises(TypeError, match="nonsense"):
        replace(FULL, nonsense=1)


def test_a_field_that_a_version_lacks_needs_a_default() -> None:
    with pytest.raises(TypeError, match="needs a default"):

        @struct
        class Defaultless:
            late: Int32 = field(versions="1+")


def test_a_type_without_a_form_on_the_wire_is_refused_at_declaration() -> None:
    with pytest.raises(TypeError, match="has no form"):

        @struct
        class Formless:
            number: int


def test_a_field_may_have_any_name_in_a_replacement() -> None:
    @struct
    class Setting:
        value: str

    assert replace(Setting(value="1"), value="2") == Setting(value="2")


def test_values_are_made_from_the_fields_that_are_given_by_their_place() -> None:
    leg = positional(Leg, "days", "port")
    assert leg(3, "Bergen") == Leg(port="Bergen", days=3)
    assert positional(Leg, "port")("Bergen") == Leg(port="Bergen", days=7)
    assert unknown_tags(leg(3, "Bergen")) == ()
    with pytest.raises(TypeError, match="Leg needs port"):
        positional(Leg, "days")


def test_a_long_message_in_steps_is_joined_in_chunks() -> None:
    """The end of millions of parts takes 0.2 s."""
    voyage = Voyage(number=1, name="round", legs=tuple(Leg(port=f"port {number}") for number in range(30_000)))
    parts: list[Any] = []
    chunks: list[Any] = []
    most_parts = max(len(parts) for _ in encode_in_steps(voyage, 1, parts, chunks))
    assert b"".join([*chunks, *parts]) == encode_bytes(voyage, 1)
    assert len(chunks) > 1
    assert most_parts < 17_000
