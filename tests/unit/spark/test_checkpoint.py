"""The text of checkpoints: batches that are read as they were written, and the refusal of anything else."""

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.model.errors import KafkaError
from tailrace.model.ids import TopicId
from tailrace.model.partitions import TopicPartition
from tailrace.spark.checkpoint import (
    BatchEnd,
    Batches,
    PartitionLog,
    SourceEnd,
    Standing,
    parse_query_id,
    renamed,
    standings,
)
from tailrace.spark.offsets import Positions

CONNECTOR = Path(__file__).parents[2] / "golden" / "connector_checkpoint"
METADATA = '{"batchWatermarkMs":0,"batchTimestampMs":1,"conf":{"a":"b"}}'
OLD, NEW = TopicId(b"o" * 16), TopicId(b"n" * 16)
TEA, TEA_1, MILK = TopicPartition("tea", 0), TopicPartition("tea", 1), TopicPartition("milk", 0)

names = st.text("abc.-_", min_size=1, max_size=5)
offsets = st.dictionaries(
    st.builds(TopicPartition, names, st.integers(0, 2**31 - 1)), st.integers(0, 2**63 - 1), min_size=1
)
positions = st.builds(
    lambda offsets, ids: Positions(offsets, {tp.topic: ids for tp in offsets} if ids else {}),
    offsets,
    st.none() | st.binary(min_size=16, max_size=16).map(TopicId),
)
others = st.sampled_from(["-", '{"offset":3,"timestamp":1000}', '{"logOffset":0}', "7", '{"shard":{"at":"x"}}'])


def batch(*lines: str) -> bytes:
    return "\n".join(("v1", METADATA, *lines)).encode()


def written(from_positions: Positions) -> str:
    return json.dumps(from_positions.to_json_dict())


@given(st.lists(positions | others, min_size=1, max_size=4))
def test_a_batch_is_read_as_it_was_written(sources: list[Positions | str]) -> None:
    content = batch(*(source if isinstance(source, str) else written(source) for source in sources))
    end = BatchEnd.parse(content, path="offsets/3")
    assert end.format() == content
    assert [source.positions for source in end.sources] == [
        None if isinstance(source, str) else source for source in sources
    ]


@given(positions, positions, st.booleans())
def test_an_end_that_is_moved_keeps_its_form(before: Positions, after: Positions, is_compact: bool) -> None:
    text = json.dumps(before.to_json_dict(), separators=(",", ":") if is_compact else None)
    moved = SourceEnd(text, before).at(after)
    (read,) = BatchEnd.parse(batch(moved.text), path="offsets/3").sources
    assert read == moved
    assert read.positions == after
    assert (" " in moved.text) is not is_compact or before == after


def test_the_connectors_batch_is_read() -> None:
    path = CONNECTOR / "offsets" / "1"
    end = BatchEnd.parse(path.read_bytes(), path=str(path))
    assert [source.positions for source in end.sources] == [
        Positions({TopicPartition("orders", 0): 8, TopicPartition("orders", 1): 8}, {})
    ]
    assert end.format() == path.read_bytes()
    assert end.topics == ["orders"]


def refusal_of(content: bytes) -> str:
    with pytest.raises(KafkaError) as refused:
        BatchEnd.parse(content, path="a/offsets/7")
    return refused.value.detail


def test_a_batch_that_is_cut_short_anywhere_is_refused_by_its_name() -> None:
    content = (CONNECTOR / "offsets" / "1").read_bytes()
    assert all(refusal_of(content[:length]).startswith("a/offsets/7") for length in range(len(content)))


@pytest.mark.parametrize(
    ("content", "refusal"),
    [
        (b"", "empty or cut short"),
        (b"v2\n{}\n0:{}", "version 'v2'"),
        (b"v1\r\n{}\r\n{}", "version"),
        (b"\xff\xfe", "is not text"),
        (b"v1\n[]\n{}", "line 2 is no JSON object"),
        (b"v1\n{}", "offsets of no source"),
        (batch('{"tea":{"0":5}}', ""), "line 4: is not JSON"),
        (batch("[" * 100_000), "line 3: is not JSON"),
        (batch("9" * 5_000), "line 3: is not JSON"),
        (batch('{"tea":{"0":-1}}'), "'0': -1 is not a partition and an offset"),
        (batch(f'{{"tea":{{"0":{2**63}}}}}'), "is not a partition and a whole number"),
        (batch(f'{{"tea":{{"{2**31}":1}}}}'), "is not a partition and a whole number"),
        (batch(f'{{"tea":{{"{"9" * 30}":1}}}}'), "is not a partition and a whole number"),
        (batch('{"tea":{"0":1,"00":2}}'), "names tea-0 twice"),
        (batch('{"tea":{"00":2}}'), "by another number"),
        (batch('{"tea":{}}'), "without partitions"),
        (batch('{"tea":{"0":1},"tea#short":{}}'), "line 3: 'tea#short'"),
    ],
)
def test_another_form_is_refused_with_its_line(content: bytes, refusal: str) -> None:
    detail = refusal_of(content)
    assert detail.startswith("a/offsets/7")
    assert refusal in detail


@given(st.binary(max_size=200))
def test_any_bytes_are_read_or_refused(content: bytes) -> None:
    try:
        assert BatchEnd.parse(content, path="p").format() == content
    except KafkaError as fault:
        assert fault.detail.startswith("p")


@pytest.mark.parametrize("content", [b"", b"{}", b'{"id":""}', b'{"id":5}', b"[1]", b"\xff", b'{"id":"a'])
def test_other_metadata_is_refused(content: bytes) -> None:
    with pytest.raises(KafkaError) as refused:
        parse_query_id(content, path="a/metadata")
    assert refused.value.detail.startswith("a/metadata: ")


def test_the_id_of_the_query_is_read() -> None:
    assert len(parse_query_id((CONNECTOR / "metadata").read_bytes(), path="metadata")) == 36


@pytest.mark.parametrize(
    ("offset_names", "commit_names", "batches"),
    [
        ([], [], Batches(None, ())),
        (["0"], [], Batches(None, (0,))),
        (["9", "10", ".10.crc"], ["9", ".9.crc"], Batches(9, (10,))),
        (["9", "10"], ["9", "10"], Batches(10, ())),
        (["3", "5", "7", "8"], ["3"], Batches(3, (5, 7, 8))),
        (["0", "01", "1.tmp", "٣", "1" * 20], ["0", "-1"], Batches(0, ())),
    ],
)
def test_batches_are_planned_behind_the_last_committed_one(
    offset_names: list[str], commit_names: list[str], batches: Batches
) -> None:
    assert Batches.of(offset_names, commit_names) == batches


def test_a_renamed_topic_keeps_its_offsets_and_not_its_id() -> None:
    before = Positions({TEA: 1, TEA_1: 2, MILK: 3}, {"tea": OLD, "milk": NEW})
    assert renamed(before, {"tea": "chai"}) == Positions(
        {TopicPartition("chai", 0): 1, TopicPartition("chai", 1): 2, MILK: 3}, {"milk": NEW}
    )
    assert renamed(before, {"tea": "milk", "milk": "tea"}).offsets == {
        TopicPartition("milk", 0): 1,
        TopicPartition("milk", 1): 2,
        TEA: 3,
    }


def test_two_topics_do_not_become_one() -> None:
    with pytest.raises(KafkaError, match="become a single topic: milk"):
        renamed(Positions({TEA: 1, MILK: 3}, {}), {"tea": "milk"})


@pytest.mark.parametrize(
    ("standing", "verdict", "lost", "lag"),
    [
        (Standing(5, PartitionLog(0, 9)), "resumes", 0, 4),
        (Standing(5, PartitionLog(5, 5)), "resumes", 0, 0),
        (Standing(5, PartitionLog(7, 9)), "would lose 2", 2, 2),
        (Standing(5, PartitionLog(0, 4)), "ahead of the log", None, None),
        (Standing(5, PartitionLog(0, 9), is_made_anew=True), "made anew", None, None),
        (Standing(5, None), "gone", None, None),
    ],
)
def test_a_verdict_compares_an_offset_with_its_log(
    standing: Standing, verdict: str, lost: int | None, lag: int | None
) -> None:
    assert (str(standing), standing.lost, standing.lag) == (verdict, lost, lag)


def test_a_topic_with_another_id_is_made_anew_and_one_without_is_not() -> None:
    logs = dict.fromkeys((TEA, MILK), PartitionLog(0, 9))
    now = Positions({TEA: 9, MILK: 9}, {"tea": NEW, "milk": NEW})
    found = standings(Positions({TEA: 1, TEA_1: 1, MILK: 1}, {"tea": OLD}), now, logs)
    assert {str(tp): str(standing) for tp, standing in found.items()} == {
        "milk-0": "resumes",
        "tea-0": "made anew",
        "tea-1": "gone",
    }
