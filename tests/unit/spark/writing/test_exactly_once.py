"""Refusals of an exactly-once write say which option they are about, and the way out."""

from collections.abc import Sequence
from types import TracebackType
from typing import Self

import pytest

from tailrace.client.transactions.sinks import CommittedBatch, SinkRefusal, WrittenMember
from tailrace.model.errors import ErrorCode
from tailrace.model.sinks import RowsDigest, SinkMember
from tailrace.spark.writing.exactly_once import ExactlyOnce
from tailrace.spark.writing.sink_batch import SinkBatch
from tailrace.spark.writing.sink_options import SinkTransactions, parse_sink_options

E = ErrorCode
BATCH = SinkBatch("copy", "r1", 7, "q")
ROWS = RowsDigest(3, 1)
MEMBER = WrittenMember(SinkMember("copy", "r1", 7, 0, 0).transactional_id, 5, 0)
OTHER_ROWS = "sink 'copy' has batch 7 with 100 rows, and it comes again with other rows"
REFUSAL = SinkRefusal(E.OUT_OF_ORDER_SEQUENCE_NUMBER, OTHER_ROWS, 7)


class Refusing:
    """The double of an Admin: refuses batches with these rows, and takes all other batches."""

    def __init__(self, refusal: SinkRefusal) -> None:
        self._refusal = refusal
        self.commits: list[RowsDigest | None] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type | None, fault: BaseException | None, trace: TracebackType | None) -> None: ...

    def commit_sink(
        self,
        sink: str,
        *,
        run: str,
        batch: int,
        members: Sequence[WrittenMember],
        origin: str | None,
        takes_over: bool,
        rows: RowsDigest | None,
    ) -> CommittedBatch:
        self.commits.append(rows)
        if rows is not None:
            raise self._refusal
        return CommittedBatch(batch, True)


def sink(monkeypatch: pytest.MonkeyPatch, refusal: SinkRefusal, **options: str) -> tuple[ExactlyOnce, Refusing]:
    given = {"kafka.bootstrap.servers": "127.0.0.1:1", "topic": "t", "exactlyOnce": "true", **options}
    parsed = parse_sink_options(given)
    admin = Refusing(refusal)
    monkeypatch.setattr(ExactlyOnce, "_admin", lambda self: admin)
    return ExactlyOnce(parsed, parsed.transactions or SinkTransactions()), admin


@pytest.mark.parametrize("kept", [None, "6"])
def test_other_rows_are_refused_with_the_ways_out(monkeypatch: pytest.MonkeyPatch, kept: str | None) -> None:
    tried, admin = sink(monkeypatch, REFUSAL, **({} if kept is None else {"sinkKeepsBatch": kept}))
    with pytest.raises(SinkRefusal) as refused:
        tried.commit(BATCH, [MEMBER], ROWS)
    for part in (OTHER_ROWS, "the checkpoint", "another sinkId", "uuid()", "sinkKeepsBatch=7", "sinkKeepsBatch=any"):
        assert part in refused.value.detail
    assert admin.commits == [ROWS]


@pytest.mark.parametrize("kept", ["7", "any", " ANY "])
def test_other_rows_are_dropped_by_the_option_alone(monkeypatch: pytest.MonkeyPatch, kept: str) -> None:
    tried, admin = sink(monkeypatch, REFUSAL, sinkKeepsBatch=kept)
    tried.commit(BATCH, [MEMBER], ROWS)
    assert admin.commits == [ROWS, None]


@pytest.mark.parametrize("kept", ["7", "any"])
def test_a_batch_before_the_last_one_is_refused_whatever_the_option(monkeypatch: pytest.MonkeyPatch, kept: str) -> None:
    refusal = SinkRefusal(E.OUT_OF_ORDER_SEQUENCE_NUMBER, "the sink has taken batches up to 9", 9)
    tried, admin = sink(monkeypatch, refusal, sinkKeepsBatch=kept)
    with pytest.raises(SinkRefusal, match="batches up to 9"):
        tried.commit(BATCH, [MEMBER], ROWS)
    assert admin.commits == [ROWS]


def test_another_batch_write_needs_another_sink_id(monkeypatch: pytest.MonkeyPatch) -> None:
    tried, _ = sink(monkeypatch, SinkRefusal(E.OUT_OF_ORDER_SEQUENCE_NUMBER, OTHER_ROWS, 1), sinkId="copy")
    with pytest.raises(SinkRefusal, match="needs another sinkId") as refused:
        tried.commit(SinkBatch("copy", "r1", 1), [], ROWS)
    assert "checkpoint" not in refused.value.detail


@pytest.mark.parametrize(("sink_id", "is_repeated"), [(None, True), ("copy-4", False)])
def test_a_write_of_for_each_batch_without_a_sink_id_says_that_it_may_be_repeated(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, sink_id: str | None, is_repeated: bool
) -> None:
    tried, admin = sink(monkeypatch, REFUSAL, **({} if sink_id is None else {"sinkId": sink_id}))
    monkeypatch.setattr(admin, "commit_sink", lambda *_, **__: CommittedBatch(1, False))
    tried.commit(SinkBatch("copy-4", "r1", 1, "q", query_batch=4), [], ROWS)
    assert ("batch 4 of query q is written again if Spark repeats it" in caplog.text) is is_repeated
    caplog.clear()
    tried.commit(SinkBatch("write-1", "r1", 1), [], ROWS)
    tried.commit(BATCH, [MEMBER], ROWS)
    assert caplog.text == ""


@pytest.mark.parametrize("code", [E.INVALID_PRODUCER_ID_MAPPING, E.PRODUCER_FENCED, E.INVALID_TXN_STATE])
def test_a_transaction_that_has_timed_out_names_the_option(monkeypatch: pytest.MonkeyPatch, code: ErrorCode) -> None:
    refusal = SinkRefusal(code, f"{MEMBER.transactional_id!r} is unknown: it has timed out, or was aborted", 6)
    tried, _ = sink(monkeypatch, refusal, **{"kafka.transaction.timeout.ms": "5000"})
    with pytest.raises(SinkRefusal, match=r"timed out.*option kafka.transaction.timeout.ms: .* 5000 ms after"):
        tried.commit(BATCH, [MEMBER], ROWS)


def test_a_run_that_was_followed_has_not_timed_out(monkeypatch: pytest.MonkeyPatch) -> None:
    tried, _ = sink(monkeypatch, SinkRefusal(E.PRODUCER_FENCED, "run 'r1' of sink 'copy' is fenced", 6))
    with pytest.raises(SinkRefusal) as refused:
        tried.commit(BATCH, [MEMBER], ROWS)
    assert "timeout" not in refused.value.detail
