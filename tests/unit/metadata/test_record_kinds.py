"""A kind of metadata record is a row beside its class, and a decider: nothing else in the house knows it by name."""

from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from tailrace.metadata.commands import ControllerCommand, ControllerResponse
from tailrace.metadata.controller import DECIDERS, ControllerMachine, Situation
from tailrace.metadata.image import EMPTY_IMAGE, ClusterImage
from tailrace.metadata.image_draft import ImageDraft, ImageTable
from tailrace.metadata.records.kinds import KINDS, MetadataRecord, RecordKind, decode_record, encode_record
from tailrace.metadata.records.topics import TopicRecord
from tailrace.metadata.replay import apply_all
from tailrace.metadata.snapshot_image import ChangedRecords, SnapshotLoader, difference, records_of, snapshot_values
from tailrace.metadata.stored_partitions import RecordReader
from tailrace.model.errors import ErrorCode, KafkaError
from tailrace.model.machines import Decision
from tailrace.protocol.records.record import Record, build_batch
from tailrace.protocol.schema import message
from testkit.quorum.controllers import controller_machine

# First place: the record, its state and its row.


@message(name="PaintRecord", versions="0-1", flexible="0+")
class PaintRecord(MetadataRecord):
    thing: str
    colour: str | None


PAINTS: ImageTable[str, str] = ImageTable("paints")
NUMBER = 1_000


def paint(draft: ImageDraft, record: PaintRecord) -> None:
    if record.colour is not None:
        PAINTS.draft(draft)[record.thing] = record.colour
    else:
        del PAINTS.draft(draft)[record.thing]


def write_paints(image: ClusterImage) -> Iterator[PaintRecord]:
    return (PaintRecord(thing=thing, colour=colour) for thing, colour in PAINTS.of(image).items())


ROW = RecordKind(
    number=NUMBER,
    record=PaintRecord,
    version=1,
    apply=paint,
    key=lambda record: (NUMBER, record.thing),
    value=lambda state, key: PAINTS.get(state, key[1]),
    write=write_paints,
    place=9,
)

# Second place: the command and its decider.


@dataclass(frozen=True, slots=True)
class Paint(ControllerCommand):
    thing: str
    colour: str


@dataclass(frozen=True, slots=True)
class Painted(ControllerResponse):
    before: str | None


def decide(now: Situation, command: Paint) -> Decision[MetadataRecord, ControllerResponse]:
    if not command.thing:
        raise KafkaError(ErrorCode.INVALID_REQUEST, "nothing cannot be painted")
    record = PaintRecord(thing=command.thing, colour=command.colour)
    return Decision(records=(record,), response=Painted(PAINTS.of(now.image).get(command.thing)))


@pytest.fixture(autouse=True)
def paint_kind(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(KINDS.by_number, NUMBER, ROW)
    monkeypatch.setitem(KINDS.by_class, PaintRecord, ROW)
    monkeypatch.setitem(DECIDERS, Paint, decide)


@pytest.fixture
def machine() -> ControllerMachine:
    return controller_machine()


TOPIC = TopicRecord(name="orders", topic_id=b"t" * 16)
RED = PaintRecord(thing="door", colour="red")
BLUE = PaintRecord(thing="door", colour="blue")
BARE = PaintRecord(thing="door", colour=None)


@pytest.fixture
def painted() -> ClusterImage:
    return apply_all(EMPTY_IMAGE, [RED, TOPIC])[0]


def test_a_made_up_record_has_a_frame_of_its_number_and_version() -> None:
    value = encode_record(RED)
    assert value.startswith(b"\x01\xe8\x07\x01")
    assert decode_record(value) == RecordReader().read(value) == RED
    with pytest.raises(KafkaError, match=r"type 1000 \(PaintRecord\) in version 2"):
        decode_record(b"\x01\xe8\x07\x02" + value[4:])


def test_a_made_up_command_is_decided_and_applied(machine: ControllerMachine) -> None:
    for colour, before in (("red", None), ("blue", "red")):
        decision = machine.decide(Paint("door", colour), 0)
        assert decision.response == Painted(before)
        delta = machine.apply_all(decision.records)
        assert delta.changed_tables == ("paints",)
    assert PAINTS.of(machine.image) == {"door": "blue"}
    with pytest.raises(KafkaError, match="nothing cannot be painted"):
        machine.decide(Paint("", "red"), 0)


def test_a_made_up_kind_is_in_snapshots_at_its_place(painted: ClusterImage) -> None:
    assert list(records_of(painted)) == [TOPIC, RED]
    loader = SnapshotLoader()
    loader.load(bytes(build_batch(Record(0, 0, None, value) for value in snapshot_values(painted))))
    assert loader.image() == painted


def test_metadata_records_of_a_made_up_kind_count_as_changed_since_the_snapshot(painted: ClusterImage) -> None:
    def counted(*records: PaintRecord) -> int:
        changed, image = ChangedRecords(painted, snapshot_records=None), painted
        for record in records:
            image, delta = apply_all(image, [record])
            changed.add(image, delta)
        return len(changed)

    other = PaintRecord(thing="wall", colour="red")
    assert (counted(BLUE), counted(RED), counted(BLUE, RED), counted(BARE), counted(BARE, RED)) == (1, 0, 0, 1, 0)
    assert (counted(other), counted(other, PaintRecord(thing="wall", colour="blue"))) == (0, 1)


def test_the_difference_of_two_images_names_a_changed_table(painted: ClusterImage) -> None:
    after, delta = apply_all(painted, [BLUE])
    assert difference(painted, after) == delta
    assert delta.changed_tables == ("paints",)
    assert apply_all(painted, [RED])[1].changed_tables == ()


def test_a_table_without_entries_is_no_part_of_an_image(painted: ClusterImage) -> None:
    after, delta = apply_all(painted, [BARE])
    assert after == apply_all(EMPTY_IMAGE, [TOPIC])[0]
    assert delta == difference(painted, after)
    assert delta.changed_tables == ("paints",)
