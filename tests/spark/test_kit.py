"""`tailrace.testing.spark`: runs of a pipeline, with kills in the middle, on one checkpoint.

`test_connect` runs some of the tests in a Spark Connect session.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException, StreamingQueryException
from pyspark.sql import DataFrame, SparkSession

from tailrace.testing.spark import InputRecord, assert_rows, feed, kill_at, run_available_now, topic_rows

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]

DRINKS = ["tea", "milk", "rum", "gin"]
SHOUTED = ["TEA", "MILK", "RUM", "GIN"]


@pytest.fixture
def topic(topic: str, bootstrap: str) -> str:
    """A topic of one partition with drinks, so that one task writes the drinks."""
    feed(bootstrap, f"{topic}-drinks", DRINKS)
    return f"{topic}-drinks"


@pytest.fixture
def target(topic: str, bootstrap: str) -> str:
    feed(bootstrap, f"{topic}-shouted", [])
    return f"{topic}-shouted"


def shouted(spark: SparkSession, servers: str, topic: str) -> DataFrame:
    """The stream of the topic, in capitals."""
    source = spark.readStream.format("tailrace").option("kafka.bootstrap.servers", servers)
    frame = source.option("subscribe", topic).option("startingOffsets", "earliest").load()
    return frame.selectExpr("key", "upper(CAST(value AS STRING)) AS value")


Pipeline = Callable[..., Any]


@pytest.fixture
def shout(spark: SparkSession, bootstrap: str, topic: str, target: str) -> Pipeline:
    """A pipeline that writes the topic's values in capitals to the target."""

    def shout(*, checkpoint: str, exactly_once: bool = True) -> Any:
        writer = shouted(spark, bootstrap, topic).writeStream.format("tailrace")
        writer = writer.option("kafka.bootstrap.servers", bootstrap).option("topic", target)
        return writer.option("exactlyOnce", str(exactly_once).lower())

    return shout


@pytest.fixture
def shout_at_least_once(shout: Pipeline) -> Pipeline:
    return lambda checkpoint: shout(checkpoint=checkpoint, exactly_once=False)


def test_a_run_ends_with_the_records_that_are_there_and_a_restart_goes_on(
    shout: Pipeline, bootstrap: str, topic: str, target: str, tmp_path: Path
) -> None:
    run = run_available_now(shout, checkpoint=tmp_path / "checkpoint")
    assert (run.rows, run.batches, run.kills, run.error) == (4, 1, 0, None)
    assert_rows(topic_rows(bootstrap, target), SHOUTED, ordered=True)
    feed(bootstrap, topic, [InputRecord("wine"), ("bob", "cider")])
    again = run.restart()
    assert (again.rows, again.batches) == (2, 1)
    assert_rows(
        topic_rows(bootstrap, target, "key", "value"),
        [*((None, word) for word in [*SHOUTED, "WINE"]), ("bob", "CIDER")],
    )


@pytest.mark.parametrize(
    ("point", "seen", "written"),
    [
        pytest.param("write", [], SHOUTED[:3], id="write"),
        pytest.param("commit", [], SHOUTED, id="commit"),
        pytest.param("committed", SHOUTED, SHOUTED, id="committed", marks=pytest.mark.soak),
    ],
)
def test_an_exactly_once_pipeline_loses_and_repeats_nothing_when_it_is_killed(
    shout: Pipeline, bootstrap: str, target: str, tmp_path: Path, point: Any, seen: list[str], written: list[str]
) -> None:
    with kill_at(point, after_rows=3) as kills:
        run = run_available_now(shout, checkpoint=tmp_path / "checkpoint")
        assert (run.kills, run.batches, kills.count) == (1, 0, 1)
        assert run.error is not None
    assert_rows(topic_rows(bootstrap, target), seen)
    assert_rows(topic_rows(bootstrap, target, isolation="read_uncommitted"), written)
    assert run.restart().error is None
    assert_rows(topic_rows(bootstrap, target), SHOUTED)


def test_the_rows_that_an_at_least_once_pipeline_repeats_are_found(
    shout_at_least_once: Pipeline, bootstrap: str, target: str, tmp_path: Path
) -> None:
    with kill_at("write", after_rows=3):
        run_available_now(shout_at_least_once, checkpoint=tmp_path / "checkpoint").restart()
    with pytest.raises(AssertionError, match=r"3 repeated:\n    'TEA'  \(2 times instead of 1\)"):
        assert_rows(topic_rows(bootstrap, target), SHOUTED)


@pytest.mark.soak
def test_as_many_processes_die_as_are_asked_for(shout: Pipeline, bootstrap: str, target: str, tmp_path: Path) -> None:
    with kill_at("commit", times=2) as kills:
        first = run_available_now(shout, checkpoint=tmp_path / "checkpoint")
        second = first.restart()
        third = second.restart()
    assert [run.kills for run in (first, second, third)] == [1, 1, 0]
    assert [run.error is None for run in (first, second, third)] == [False, False, True]
    assert kills.count == 2
    assert_rows(topic_rows(bootstrap, target), SHOUTED)


def test_a_batch_write_is_killed_too(spark: SparkSession, bootstrap: str, target: str) -> None:
    def save() -> None:
        frame = spark.sql("SELECT explode(array('tea', 'milk')) AS value")
        writer = frame.write.format("tailrace").option("kafka.bootstrap.servers", bootstrap)
        writer.option("topic", target).option("exactlyOnce", "true").option("sinkId", target).mode("append").save()

    with kill_at("committed") as kills:
        with pytest.raises((PySparkException, Py4JJavaError)):  # classic sessions do not translate it
            save()
        assert kills.count == 1
    save()
    assert_rows(topic_rows(bootstrap, target), ["tea", "milk"])


@pytest.mark.soak
def test_a_batch_write_in_foreach_batch_is_killed_too(
    spark: SparkSession, bootstrap: str, topic: str, target: str, tmp_path: Path
) -> None:
    def save(frame: DataFrame, batch: int) -> None:
        writer = frame.write.format("tailrace").option("kafka.bootstrap.servers", bootstrap).option("topic", target)
        writer.option("exactlyOnce", "true").option("sinkId", f"{target}-{batch}").mode("append").save()

    def shout_each(*, checkpoint: str) -> Any:
        return shouted(spark, bootstrap, topic).writeStream.foreachBatch(save)

    with kill_at("committed"):
        run = run_available_now(shout_each, checkpoint=tmp_path / "checkpoint")
        assert (run.kills, run.batches) == (1, 0)
    run.restart()
    assert_rows(topic_rows(bootstrap, target), SHOUTED)


def test_a_block_that_kills_nothing_fails(shout: Pipeline, tmp_path: Path) -> None:
    writer = shout(checkpoint="")  # its format is given before the block
    with pytest.raises(AssertionError, match=r"kill_at\('write'\) has killed nothing"), kill_at("write"):
        run_available_now(lambda checkpoint: writer, checkpoint=tmp_path / "checkpoint")


@pytest.mark.soak
def test_a_writer_of_a_block_that_is_over_is_not_killed(
    shout: Pipeline, bootstrap: str, target: str, tmp_path: Path
) -> None:
    with pytest.raises(AssertionError, match="has killed nothing"), kill_at("write"):
        writer = shout(checkpoint="")
    run = run_available_now(lambda checkpoint: writer, checkpoint=tmp_path / "checkpoint")
    assert (run.kills, run.error) == (0, None)
    assert_rows(topic_rows(bootstrap, target), SHOUTED)


def test_a_query_that_fails_without_a_kill_raises_its_own_error(
    spark: SparkSession, bootstrap: str, topic: str, target: str, tmp_path: Path
) -> None:
    def fail(*, checkpoint: str) -> Any:
        frame = shouted(spark, bootstrap, topic).selectExpr("raise_error('the well is dry') AS value")
        writer = frame.selectExpr("CAST(value AS STRING) AS value").writeStream.format("tailrace")
        return writer.option("kafka.bootstrap.servers", bootstrap).option("topic", target)

    with pytest.raises(StreamingQueryException, match="the well is dry"), kill_at("write"):
        run_available_now(fail, checkpoint=tmp_path / "checkpoint")


def test_a_query_that_does_not_end_is_stopped(spark: SparkSession, shout: Pipeline, tmp_path: Path) -> None:
    def run_for_ever(*, checkpoint: str) -> Any:
        return shout(checkpoint=checkpoint).option("checkpointLocation", checkpoint).start()

    with pytest.raises(TimeoutError, match=r"has not ended within 0.5 s: .*trigger\(availableNow=True\)"):
        run_available_now(run_for_ever, checkpoint=tmp_path / "checkpoint", timeout_s=0.5)
    assert not spark.streams.active


@pytest.mark.soak
def test_a_pipeline_may_start_its_query(shout: Pipeline, bootstrap: str, target: str, tmp_path: Path) -> None:
    def start(place: str, *, checkpoint: str) -> Any:
        writer = shout(checkpoint=checkpoint).option("checkpointLocation", place or checkpoint)
        return writer.trigger(availableNow=True).start()

    run = run_available_now(start, "", checkpoint=tmp_path / "checkpoint")
    assert (run.rows, run.batches) == (4, 1)
    assert_rows(topic_rows(bootstrap, target), SHOUTED)
    with pytest.raises(ValueError, match="there is no directory .*unused: give its writeStream the option"):
        run_available_now(start, str(tmp_path / "elsewhere"), checkpoint=tmp_path / "unused")


def test_a_pipeline_that_gives_no_query_is_named(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match="the pipeline gives 7, neither a DataStreamWriter"):
        run_available_now(lambda checkpoint: 7, checkpoint=tmp_path)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"point": "read"}, "the point is 'write', 'commit' or 'committed', not 'read'"),
        ({"point": "write", "times": 0}, "times is 0"),
        ({"point": "write", "after_rows": 0}, "after_rows is 0"),
    ],
)
def test_a_wrong_kill_is_named(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message), kill_at(**arguments):
        pass


def test_a_block_is_not_inside_of_another(spark: SparkSession) -> None:
    with pytest.raises(RuntimeError, match="another block of kill_at"), kill_at("write"), kill_at("commit"):
        pass


def test_the_rows_of_frames_are_compared(spark: SparkSession) -> None:
    wanted = spark.sql("SELECT * FROM VALUES (1, 'tea'), (2, 'milk') AS (id, name)")
    same = spark.sql("SELECT * FROM VALUES (2, 'milk'), (1, 'tea') AS (id, name)")
    assert_rows(same, wanted)
    assert_rows(same, [(1, "tea"), (2, "milk")])
    assert_rows(same, [{"name": "tea", "id": 1}, {"id": 2, "name": "milk"}])
    assert_rows(same.select("name"), ["tea", "milk"])
    for planted, message in (
        ("SELECT 1 AS id, 'tea' AS name", r"1 missing:\n    \(2, 'milk'\)"),
        ("SELECT * FROM VALUES (1, 'tea'), (2, 'milk'), (1, 'tea') AS (id, name)", r"1 repeated:\n    \(1, 'tea'\)"),
        ("SELECT * FROM VALUES (1, 'tea'), (2, 'rum') AS (id, name)", r"(?s)missing.*'milk'.*extra.*'rum'"),
    ):
        with pytest.raises(AssertionError, match=message):
            assert_rows(spark.sql(planted), wanted)
    with pytest.raises(ValueError, match="has other columns than id, name"):
        assert_rows(same, [{"id": 1}])


def test_frames_of_another_schema_differ(spark: SparkSession) -> None:
    number, text = (spark.sql(f"SELECT CAST(1 AS {kind}) AS id") for kind in ("INT", "BIGINT"))
    with pytest.raises(AssertionError, match="IntegerType"):
        assert_rows(number, text)


def test_a_stream_is_no_rows(spark: SparkSession, bootstrap: str, topic: str) -> None:
    with pytest.raises(TypeError, match="a streaming DataFrame has no rows yet"):
        assert_rows(shouted(spark, bootstrap, topic), [])
