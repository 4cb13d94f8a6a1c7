"""KIP-98, the idempotent producer: what the broker does with sequence numbers.

A sequence number must be the last number of the same producer, epoch and partition plus 1; a batch that is in the log
already is answered as if it had just been written. Sequence numbers count records and wrap.
"""

from dataclasses import dataclass

import pytest

from tailrace.model.errors import ErrorCode
from tailrace.model.topic_config import TopicConfig
from tailrace.server.partitions.periodic_work import PartitionPasses
from tailrace.testing.disk import SimulatedDisk
from testkit.nodes.data_path import DataPath, batch_of

OUT_OF_ORDER = int(ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER)
OLD_EPOCH = int(ErrorCode.INVALID_PRODUCER_EPOCH)
MAX_SEQUENCE = 2**31 - 1


@dataclass(frozen=True, kw_only=True)
class Sent:
    """A batch of one producer, and its answer: an error code, or the base offset."""

    sequence: int
    count: int = 1
    epoch: int = 0
    producer_id: int = 7
    offset: int | None = None
    error: int = 0


@dataclass(frozen=True, kw_only=True)
class SequenceScenario:
    name: str
    sent: tuple[Sent, ...]


SCENARIOS = (
    SequenceScenario(
        name="sequence numbers count records",
        sent=(Sent(sequence=0, count=3, offset=0), Sent(sequence=3, offset=3), Sent(sequence=4, offset=4)),
    ),
    SequenceScenario(name="a gap is refused", sent=(Sent(sequence=0, offset=0), Sent(sequence=2, error=OUT_OF_ORDER))),
    SequenceScenario(
        name="what follows the gap is taken once the gap is filled",
        sent=(
            Sent(sequence=0, offset=0),
            Sent(sequence=2, error=OUT_OF_ORDER),
            Sent(sequence=1, offset=1),
            Sent(sequence=2, offset=2),
        ),
    ),
    SequenceScenario(
        name="each of the last five batches is known again",
        sent=(
            *(Sent(sequence=number, offset=number) for number in range(6)),
            *(Sent(sequence=number, offset=number) for number in range(1, 6)),
            Sent(sequence=0, error=OUT_OF_ORDER),
        ),
    ),
    SequenceScenario(
        name="a repeated batch with other records in it is no repetition",
        sent=(Sent(sequence=0, count=2, offset=0), Sent(sequence=0, count=1, error=OUT_OF_ORDER)),
    ),
    SequenceScenario(
        name="a new epoch starts at 0 and fences the old one",
        sent=(
            Sent(sequence=0, offset=0),
            Sent(sequence=1, epoch=1, error=OUT_OF_ORDER),
            Sent(sequence=0, epoch=1, offset=1),
            Sent(sequence=1, epoch=0, error=OLD_EPOCH),
        ),
    ),
    SequenceScenario(
        name="producers do not disturb each other",
        sent=(
            Sent(sequence=0, offset=0),
            Sent(sequence=0, producer_id=8, offset=1),
            Sent(sequence=1, offset=2),
            Sent(sequence=1, producer_id=8, offset=3),
        ),
    ),
    SequenceScenario(
        name="after the largest sequence number comes 0",
        sent=(Sent(sequence=MAX_SEQUENCE - 1, count=2, offset=0), Sent(sequence=0, offset=2)),
    ),
    SequenceScenario(
        name="a batch may wrap in its middle",
        sent=(Sent(sequence=MAX_SEQUENCE, count=3, offset=0), Sent(sequence=2, offset=3)),
    ),
    SequenceScenario(name="a producer nothing is known of may start anywhere", sent=(Sent(sequence=40, offset=0),)),
    SequenceScenario(
        name="a producer nothing is known of may start in any epoch",
        sent=(Sent(sequence=40, epoch=3, offset=0), Sent(sequence=41, epoch=3, offset=1)),
    ),
    SequenceScenario(
        name="an older epoch is refused even for a batch that is stored",
        sent=(Sent(sequence=0, offset=0), Sent(sequence=0, epoch=1, offset=1), Sent(sequence=0, error=OLD_EPOCH)),
    ),
    SequenceScenario(
        name="the same numbers under a new epoch are another batch",
        sent=(Sent(sequence=0, offset=0), Sent(sequence=0, epoch=1, offset=1), Sent(sequence=0, epoch=1, offset=1)),
    ),
    SequenceScenario(
        name="a repetition does not move what is expected next",
        sent=(
            Sent(sequence=0, offset=0),
            Sent(sequence=1, offset=1),
            Sent(sequence=0, offset=0),
            Sent(sequence=2, offset=2),
        ),
    ),
)


@pytest.mark.parametrize("in_one_turn", [False, True], ids=["one turn each", "all in one turn"])
@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.name)
def test_kip_98(scenario: SequenceScenario, in_one_turn: bool) -> None:
    node = DataPath("/logs", files=SimulatedDisk())
    node.create()
    exchanges = [
        node.produce(
            "orders",
            records=batch_of(
                *(b"v" for _ in range(sent.count)),
                now=node.clock.now_ms,
                producer_id=sent.producer_id,
                producer_epoch=sent.epoch,
                base_sequence=sent.sequence,
            ),
            same_turn=in_one_turn,
        )
        for sent in scenario.sent
    ]
    node.end_turn()
    answers = [exchange.produced for exchange in exchanges]
    expected = [(sent.error, -1 if sent.offset is None else sent.offset) for sent in scenario.sent]
    assert [(answer.error_code, answer.base_offset) for answer in answers] == expected


def sent_by_producer_7(node: DataPath, *sequences: int) -> list[tuple[int, int]]:
    """Error and offset of each batch of one record."""
    answers = []
    for sequence in sequences:
        records = batch_of(b"v", now=node.clock.now_ms, producer_id=7, producer_epoch=0, base_sequence=sequence)
        answer = node.produce("orders", records=records).produced
        answers.append((answer.error_code, answer.base_offset))
    return answers


def snapshots(files: SimulatedDisk) -> list[str]:
    return [name for name in files.list_dir("/logs/orders-0") if name.endswith(".snapshot")]


def small_segments() -> TopicConfig:
    """Two batches of a record fit into each segment."""
    return TopicConfig(segment_bytes=2 * len(batch_of(b"v")) + 10)


def test_a_snapshot_is_written_at_each_roll_and_at_a_clean_stop() -> None:
    files = SimulatedDisk()
    node = DataPath("/logs", files=files)
    node.create(config=small_segments())
    sent_by_producer_7(node, *range(5))
    assert snapshots(files) == ["00000000000000000002.snapshot", "00000000000000000004.snapshot"]
    node.table.close()
    assert snapshots(files)[-1] == "00000000000000000005.snapshot"


def test_after_a_crash_the_newest_snapshot_and_the_log_behind_it_say_what_was_written() -> None:
    """For each place of the last roll: five batches may come again, and the next must follow."""
    for count in range(1, 12):
        files = SimulatedDisk()
        node = DataPath("/logs", files=files)
        node.create(config=small_segments())
        sent_by_producer_7(node, *range(count))
        again = DataPath("/logs", files=files)  # the first was killed
        again.create(config=small_segments())
        newest = range(max(0, count - 5), count)
        assert sent_by_producer_7(again, *newest) == [(0, number) for number in newest], f"{count} batches"
        assert sent_by_producer_7(again, count + 1, count) == [(OUT_OF_ORDER, -1), (0, count)]


@pytest.mark.parametrize("harm", ["damaged", "gone"])
def test_a_snapshot_that_cannot_be_read_is_made_up_for_by_an_older_one_and_the_log(harm: str) -> None:
    files = SimulatedDisk()
    node = DataPath("/logs", files=files)
    node.create(config=small_segments())
    sent_by_producer_7(node, *range(7))
    path = f"/logs/orders-0/{snapshots(files)[-1]}"
    files.flip_bit(path, 20) if harm == "damaged" else files.unlink(path)
    again = DataPath("/logs", files=files)
    again.create(config=small_segments())
    assert sent_by_producer_7(again, 6, 8, 7) == [(0, 6), (OUT_OF_ORDER, -1), (0, 7)]


def test_a_producer_is_forgotten_after_producer_id_expiration_ms_and_may_start_anywhere_then() -> None:
    node = DataPath("/logs", files=SimulatedDisk())
    node.create()
    sent_by_producer_7(node, 0)
    node.clock.advance(999)
    PartitionPasses(node.table, clock=node.clock).expire_producers(1_000)
    assert sent_by_producer_7(node, 5) == [(OUT_OF_ORDER, -1)]
    node.clock.advance(1)
    PartitionPasses(node.table, clock=node.clock).expire_producers(1_000)
    assert sent_by_producer_7(node, 5) == [(0, 1)]


def test_after_a_restart_the_last_five_batches_are_still_known() -> None:
    """A producer has up to five batches in flight; if their answers are lost with the node, it sends them all again."""
    files = SimulatedDisk()

    def send(node: DataPath) -> list[tuple[int, int]]:
        answers = [
            node.produce(
                "orders",
                records=batch_of(b"v", b"w", producer_id=7, producer_epoch=0, base_sequence=2 * number),
            ).produced
            for number in range(2, 7)
        ]
        return [(answer.error_code, answer.base_offset) for answer in answers]

    node = DataPath("/logs", files=files)
    node.create()
    first = send(node)
    assert first == [(0, 2 * number) for number in range(5)]
    node.table.close()
    again = DataPath("/logs", files=files)
    again.create()
    assert send(again) == first
    assert again.table.get("orders", 0).log.log_end_offset == 10
