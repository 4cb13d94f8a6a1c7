"""`tailrace dump-log`: Kafka's format of the content, and the reports of damage. No node runs here."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from struct import pack
from typing import NamedTuple

import pytest

from tailrace.metadata.records.brokers import FenceBrokerRecord
from tailrace.metadata.records.kinds import encode_record
from tailrace.protocol.records.control import ControlType, EndTransactionMarker, build_marker
from tailrace.protocol.records.record import BatchBuilder, Record, build_batch
from testkit.programs.commands import run_command
from testkit.records.batches import FIRST_TIMESTAMP_MS, stored_batch

GOLDEN = Path(__file__).parents[2] / "golden"
LOG = "00000000000000000000.log"
INDEX = "00000000000000000000.index"
TIME_INDEX = "00000000000000000000.timeindex"


class DumpResult(NamedTuple):
    """The exit code, and the lines of the output."""

    code: int
    out: list[str]
    err: list[str]


Dump = Callable[..., DumpResult]


@pytest.fixture
def dump(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Dump:
    """Dump files of a directory of its own."""
    monkeypatch.chdir(tmp_path)

    def call(*words: str) -> DumpResult:
        done = run_command(("dump-log", *words), capsys)
        return DumpResult(done.code, done.out.split("\n")[:-1], done.err.splitlines())

    return call


def write(name: str, *parts: bytes | bytearray | memoryview) -> None:
    Path(name).write_bytes(b"".join(parts))


def batches(count: int) -> list[bytes]:
    return [bytes(stored_batch(offset).buffer) for offset in range(count)]


@pytest.mark.parametrize("golden", sorted(GOLDEN.glob("dump_log/*.txt")), ids=lambda path: path.stem)
def test_stored_files_are_dumped_as_kafkas_own_tool_dumps_them(
    dump: Dump, golden: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first line has the options and files; Kafka 4.1 has printed the others (tests/interop)."""
    head, *expected = golden.read_text(encoding="utf-8").split("\n")[:-1]
    monkeypatch.chdir(GOLDEN / "log_directory")
    assert dump(*head.removeprefix("$ ").split()) == (0, expected, [])


def test_a_directory_is_dumped_with_all_its_files(dump: Dump) -> None:
    done = dump(str(GOLDEN / "log_directory"))
    assert (done.code, done.err) == (0, [])
    files = [Path(line.removeprefix("Dumping ")) for line in done.out if line.startswith("Dumping ")]
    assert files == sorted(path for path in (GOLDEN / "log_directory").rglob("*") if path.is_file())


def test_leader_epochs_are_shown_though_kafkas_tool_does_not_read_them(dump: Dump) -> None:
    write("leader-epoch-checkpoint", b"0\n2\n0 0\n4 1200\n")
    assert dump("leader-epoch-checkpoint").out[1:] == [
        "leaderEpoch: 0 startOffset: 0",
        "leaderEpoch: 4 startOffset: 1200",
    ]
    write("leader-epoch-checkpoint", b"0\n2\n0 0\n")
    assert dump("leader-epoch-checkpoint").code == 1


def test_sequence_numbers_wrap(dump: Dump) -> None:
    write(LOG, stored_batch(0, 2, producer_id=5, base_sequence=2**31 - 1).buffer)
    first, second = dump("--deep", LOG).out[3:]
    assert " sequence: 2147483647 " in first
    assert " sequence: 0 " in second


def test_a_wrong_checksum_is_shown_and_the_records_are_not(dump: Dump) -> None:
    first, second, third = batches(3)
    write(LOG, first, second[:-2] + b"?" + second[-1:], third)
    done = dump("--print-data-log", LOG)
    assert done.code == 1
    assert [line.split()[-1] for line in done.out if line.startswith("baseOffset")] == ["true", "false", "true"]
    assert [line.split()[2] for line in done.out if line.startswith("|")] == ["0", "2"]
    assert done.err == [
        f"{LOG} position {len(first)}: the checksum of the batch is wrong",
        "tailrace: 1 place is damaged; see above",
    ]


@pytest.mark.parametrize(
    ("rest", "why"),
    [
        (batches(2)[1][:-1], f"a batch of {len(batches(1)[0])} bytes is cut off"),
        (bytes(100), "no batch of format v2 starts here"),
        (b"???", "no batch of format v2 starts here"),
    ],
    ids=["cut off", "zeros", "a few bytes"],
)
def test_bytes_after_the_last_batch_are_counted(dump: Dump, rest: bytes, why: str) -> None:
    (first,) = batches(1)
    write(LOG, first, rest)
    done = dump(LOG)
    assert done.code == 1
    assert done.out[-1] == f"Found {len(rest)} invalid bytes at the end of {LOG}"
    assert done.err[0] == f"{LOG} position {len(first)}: {why}"


def test_offsets_that_compaction_has_left_out_are_no_damage(dump: Dump) -> None:
    write(LOG, *(stored_batch(offset).buffer for offset in (0, 4, 5, 9)))
    done = dump("--deep-iteration", LOG)
    assert done.code == 0
    assert done.err == [f"Non-consecutive offsets in {LOG}", "  0 is followed by 4", "  5 is followed by 9"]


@pytest.mark.parametrize("deep", [(), ("--deep-iteration",)])
def test_offsets_that_go_back_are_damage(dump: Dump, deep: tuple[str, ...]) -> None:
    """A flipped bit of a base offset: no checksum covers it."""
    stored = [stored_batch(offset).buffer for offset in (2, 65_539, 4)]
    name = "00000000000000000002.log"
    write(name, *stored)
    done = dump(*deep, name)
    assert done.code == 1
    place = len(stored[0]) + len(stored[1])
    assert done.err[0] == f"{name} position {place}: offset 4 where 65540 comes next, or a later one"
    assert done.err[-1].endswith("1 place is damaged; see above")


def test_a_segment_that_begins_before_its_name_is_damage(dump: Dump) -> None:
    write("00000000000000000007.log", *batches(1))
    done = dump("00000000000000000007.log")
    assert (done.code, done.err[0]) == (
        1,
        "00000000000000000007.log position 0: offset 0 where 7 comes next, or a later one",
    )


def test_index_entries_with_wrong_positions_are_named(dump: Dump) -> None:
    stored = batches(4)
    size = len(stored[0])
    write(LOG, *stored)
    write(INDEX, pack(">iiiiii", 1, size, 3, 2 * size, 4, 7), bytes(16))
    done = dump(INDEX)
    assert done.code == 1
    assert done.out[1:] == [f"offset: 1 position: {size}", f"offset: 3 position: {2 * size}", "offset: 4 position: 7"]
    assert done.err[:-1] == [
        f"Mismatches in :{INDEX}",
        "  Index offset: 3, log offset: 2",
        "  Index offset: 4, log offset: no batch starts there",
    ]
    assert dump("--verify-index-only", INDEX) == (1, done.out[:1], done.err)


def test_time_index_entries_with_wrong_timestamps_are_named(dump: Dump) -> None:
    write(LOG, *batches(5))
    times = [FIRST_TIMESTAMP_MS + after for after in (1, 9, 3, 4)]
    entries = zip(times, (1, 2, 3, 40), strict=True)
    write(TIME_INDEX, *(pack(">qi", *entry) for entry in entries), bytes(24))
    done = dump(TIME_INDEX)
    assert done.code == 1
    assert done.out[-1] == f"timestamp: {times[3]} offset: 40"
    assert done.err[:-1] == [
        f"Found timestamp mismatch in :{TIME_INDEX}",
        f"  Index timestamp: {times[1]}, log timestamp: {FIRST_TIMESTAMP_MS + 2}",
        f"Found out of order timestamp in :{TIME_INDEX}",
        f"  Index timestamp: {times[2]}, Previously indexed timestamp: {times[1]}",
        "The following indexed offsets are not found in the log.",
        "Indexed offset: 40, found log offset: -1",
    ]


def test_an_index_without_its_log_is_printed_and_said_not_to_be_checked(dump: Dump) -> None:
    write(INDEX, pack(">ii", 3, 90))
    done = dump(INDEX)
    assert (done.code, done.out[1:]) == (0, ["offset: 3 position: 90"])
    assert done.err == [f"{INDEX} is not checked: {LOG} is not there"]


def test_aborted_transactions_are_listed(dump: Dump) -> None:
    write("00000000000000000000.txnindex", pack(">hqqqq", 0, 5, 1, 2, 3))
    assert dump("00000000000000000000.txnindex").out[1:] == [
        "version: 0 producerId: 5 firstOffset: 1 lastOffset: 2 lastStableOffset: 3"
    ]


def test_a_damaged_snapshot_of_producers_is_named(dump: Dump) -> None:
    name = "00000000000000000110.snapshot"
    whole = (GOLDEN / "log_directory" / "orders-0" / name).read_bytes()
    for content in (whole[:-1] + b"?", whole[:-3], b"\0\5" + whole[2:], b"\0"):
        write(name, content)
        done = dump(name)
        assert (done.code, done.out) == (1, [f"Dumping {name}"])
        assert done.err[0].startswith(f"{name}: ")


def test_json_has_one_object_per_line_and_base64_for_what_is_no_text(dump: Dump) -> None:
    records = [Record(0, 1000, b"\xff", "ü\n".encode(), (("h", None),)), Record(0, 1000, None, None)]
    marker = EndTransactionMarker(ControlType.COMMIT, 7)
    write(LOG, build_batch(records), build_marker(marker, producer_id=1, producer_epoch=0, timestamp=5, base_offset=2))
    done = dump("--print-data-log", "-o", "json", LOG)
    first_batch, first, second, _, third = map(json.loads, done.out)
    assert (first_batch["baseOffset"], first_batch["isControl"], first_batch["isvalid"]) == (0, False, True)
    assert first_batch["deleteHorizonMs"] is None
    assert (first["key"], first["payload"], first["headerKeys"]) == ({"base64": "/w=="}, "ü\n", ["h"])
    assert not {"key", "payload"} & second.keys()
    assert (third["endTxnMarker"], third["coordinatorEpoch"]) == ("COMMIT", 7)


def test_a_control_record_of_a_later_kafka_is_not_guessed_at(dump: Dump) -> None:
    builder = BatchBuilder(is_control=True)
    builder.append(0, b"\0\0\0\x2a", b"\0\0")
    write(LOG, builder.build())
    assert dump("--deep", LOG).out[-1].endswith("headerKeys: [] controlType: UNKNOWN(42)")


def test_a_control_record_that_contradicts_itself_is_damage(dump: Dump) -> None:
    builder = BatchBuilder(is_control=True)
    builder.append(0, b"\0\0\0\2", b"\0")
    write(LOG, builder.build())
    done = dump("--deep", LOG)
    assert done.code == 1
    assert done.err[0] == f"{LOG} batch at offset 0: a LEADER_CHANGE record without a value"


@pytest.mark.parametrize(
    ("option", "key", "value", "expected"),
    [
        ("--offsets-decoder", None, b"x", "key: Error at offset 0, skipping. "),
        ("--offsets-decoder", b"\0\1\0\1g\0\1t\0\0\0\0", b"\0\x09", "key: Error at offset 0, skipping. "),
        ("--offsets-decoder", b"\0\x63", b"", "key: Unknown record type 99 at offset 0, skipping."),
        ("--cluster-metadata-decoder", None, b"\1\x63\0", "payload: Error at 0, skipping. "),
        ("--cluster-metadata-decoder", None, None, "payload: Error at 0, skipping. "),
    ],
)
def test_the_error_of_a_record_that_cannot_be_decoded_is_printed_instead(
    dump: Dump, option: str, key: bytes | None, value: bytes | None, expected: str
) -> None:
    write(LOG, build_batch([Record(0, 0, key, value)]))
    done = dump(option, LOG)
    assert (done.code, done.err) == (0, [])
    assert f"headerKeys: [] {expected}" in done.out[-1]


def test_our_own_tagged_fields_are_shown_behind_kafkas(dump: Dump) -> None:
    value = encode_record(FenceBrokerRecord(id=1, epoch=2, derived_count=3, derived_crc=2**32 - 1))
    write(LOG, build_batch([Record(0, 0, None, value)]))
    assert (
        dump("--cluster-metadata-decoder", LOG)
        .out[-1]
        .endswith(
            'payload: {"type":"FENCE_BROKER_RECORD","version":0,'
            '"data":{"id":1,"epoch":2,"derivedCount":3,"derivedCrc":4294967295}}'
        )
    )


@pytest.mark.parametrize(
    ("words", "code"),
    [(["absent.log"], 1), (["notes.txt"], 1), (["--offsets-decoder", "--cluster-metadata-decoder", LOG], 2)],
    ids=["absent", "no file of a log", "two decoders"],
)
def test_files_of_other_kinds_are_refused(dump: Dump, words: Sequence[str], code: int) -> None:
    write("notes.txt", b"")
    write(LOG, b"")
    done = dump(*words)
    assert done.code == code
    assert done.err
