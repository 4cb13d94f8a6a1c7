import json
import threading
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.client.settings import ClientSettings
from tailrace.model.errors import KafkaError
from tailrace.model.partitions import TopicPartition
from tailrace.spark import given_options
from tailrace.spark.given_options import NAMES, parse_duration_ms
from tailrace.spark.offsets import EARLIEST, LATEST, from_json_dict, to_json_dict
from tailrace.spark.reading.source_options import parse_source_options
from tailrace.spark.writing.sink_options import parse_sink_options

BASE = {"kafka.bootstrap.servers": "127.0.0.1:9092", "subscribe": "flights"}
SINK = {"kafka.bootstrap.servers": "127.0.0.1:9092", "topic": "flights"}


def test_a_batch_starts_at_earliest_and_a_stream_at_latest() -> None:
    assert parse_source_options(BASE, streaming=False).starting.everywhere == EARLIEST
    assert parse_source_options(BASE, streaming=True).starting.everywhere == LATEST


def test_names_are_known_in_any_case() -> None:
    options = parse_source_options({**BASE, "MAXOFFSETSPERTRIGGER": "5"}, streaming=True)
    assert options.max_offsets_per_trigger == 5


@pytest.mark.parametrize(
    ("given_options", "message"),
    [
        ({"subscribe": "a"}, "kafka.bootstrap.servers: is required"),
        ({**BASE, "assign": '{"a":[0]}'}, "assign and subscribe are"),
        ({"kafka.bootstrap.servers": "x:1"}, "none is"),
        ({**BASE, "startingOffsets": "latest"}, "cannot start at latest"),
        ({**BASE, "endingOffsets": "earliest"}, "cannot end at earliest"),
        ({**BASE, "startingOffsets": '{"flights":{"0":-3}}'}, "-3 is not an offset"),
        ({**BASE, "startingOffsets": '{"flights":[0]}'}, "must map partitions to numbers"),
        ({**BASE, "startingOffsets": "{"}, "startingOffsets: not JSON"),
        ({**BASE, "startingOffsets": "begin"}, "startingOffsets: must be earliest or latest, or JSON such as {"),
        ({**BASE, "startingOffsets": "Beginning"}, "not 'Beginning'; did you mean earliest?"),
        ({**BASE, "startingOffsets": "earlist"}, "did you mean earliest?"),
        ({**BASE, "startingOffsets": "-2"}, "did you mean earliest?"),
        ({**BASE, "startingOffsets": "newest"}, "did you mean latest?"),
        ({**BASE, "startingOffsets": "12"}, "startingOffsets: must be earliest or latest, or JSON such as {"),
        ({**BASE, "startingOffsets": "x" * 5_000}, "startingOffsets: must be earliest or latest"),
        ({**BASE, "endingOffsets": "end"}, "endingOffsets: must be latest, or JSON such as {"),
        ({**BASE, "endingOffsets": "begin"}, "endingOffsets: must be latest, or JSON"),
        ({**BASE, "endingOffsets": "lates"}, "did you mean latest?"),
        ({**BASE, "startingOffsets": '{"a":{"0":1}}', "endingOffsets": '{"a":{"1":1}}'}, "they differ in a-0, a-1"),
        (
            {**BASE, "client.rack.env": "RACK", "kafka.client.rack": "a"},
            "kafka.client.rack is given too",
        ),
        ({**BASE, "client.rack.env": "$RACK"}, "must be the name of an environment variable"),
        ({**BASE, "keyRangesPerPartition": "257"}, "keyRangesPerPartition: must be 256 at most"),
        ({**BASE, "keyRangesPerPartition": "2", "minPartitions": "9"}, "minPartitions: cuts partitions by offsets"),
        ({**BASE, "minPartitions": "0"}, "minPartitions: must be a whole number above 0"),
        ({**BASE, "failOnDataLoss": "maybe"}, "failOnDataLoss: must be true or false"),
        ({**BASE, "onCorruptRecords": "ignore"}, "onCorruptRecords: must be fail or skip, not 'ignore'"),
        ({**BASE, "kafka.auto.offset.reset": "earliest"}, "startingOffsets and failOnDataLoss"),
        ({**BASE, "startingTimestamp": "yesterday"}, "now-10m"),
        ({**BASE, "startingTimestamp": "9" * 19}, "milliseconds since 1970"),
        ({**BASE, "startingOffsets": f'{{"flights":{{"{"1" * 5_000}":0}}}}'}, "option startingOffsets: 'flights': "),
        ({**BASE, "kafka.isolation.level": "serializable"}, "must be read_uncommitted or read_committed"),
        ({**BASE, "startingOffsets": '{"flights":{"0":-1}}'}, "startingOffsets: -1 is latest"),
        ({**BASE, "startingOffsets": '{"flights":{"\u00b2":1}}'}, "startingOffsets: 'flights'"),
        ({**BASE, "startingOffsetsByTimestamp": '{"flights":{"0":-2}}'}, "flights-0: -2 is not ms since 1970"),
        ({**BASE, "endingOffsetsByTimestamp": '{"flights":{"0":-1}}'}, "endingOffsetsByTimestamp: flights-0: -1"),
        ({**BASE, "minOffsetsPerTrigger": "10", "maxOffsetsPerTrigger": "9"}, "10 is more than maxOffsetsPerTrigger"),
        ({"kafka.bootstrap.servers": "x:1", "subscribePattern": "("}, "subscribePattern: not a Python regular"),
        ({"kafka.bootstrap.servers": "x:1", "subscribePattern": " "}, "subscribePattern: names nothing to read"),
        ({"kafka.bootstrap.servers": "x:1", "subscribePattern": "a{9999999999}"}, "subscribePattern: not a Python"),
        ({"kafka.bootstrap.servers": "x:1", "subscribePattern": "(" * 9_999}, "subscribePattern: not a Python"),
        ({**BASE, "startingOffsetsByTimestamp": f'{{"flights":{{"0":{2**63}}}}}'}, f"'0': {2**63} is not"),
        ({**BASE, "startingOffsets": f'{{"flights":{{"0":{2**63}}}}}'}, "startingOffsets: 'flights': '0': "),
        ({**BASE, "startingOffsets": f'{{"flights":{{"0":{"9" * 5_000}}}}}'}, "startingOffsets: not JSON"),
        ({**BASE, "startingOffsets": f'{{"flights":{{"{2**31}":0}}}}'}, f"startingOffsets: 'flights': '{2**31}': "),
        ({**BASE, "startingOffsets": "[" * 100_000}, "startingOffsets: not JSON: nested too deeply"),
        ({**BASE, "startingOffsets": '{"flights":{"0":' + "[" * 100_000}, "startingOffsets: not JSON"),
        ({**BASE, "startingOffsets": '{"a":{"0":1,"00":2}}'}, "startingOffsets: names a-0 twice"),
        ({**BASE, "startingOffsets": '{"a":{"0":1,"0":2}}'}, "startingOffsets: names '0' twice"),
        ({**BASE, "endingOffsets": '{"a":{"0":1},"a":{"1":2}}'}, "endingOffsets: names 'a' twice"),
        ({"kafka.bootstrap.servers": "x:1", "assign": '{"a":[0],"a":[1]}'}, "assign: names 'a' twice"),
        ({**BASE, "minPartitions": "2147483648"}, "minPartitions: must be 2147483647 at most"),
        ({**BASE, "maxRecordsPerPartition": str(2**63)}, f"maxRecordsPerPartition: must be {2**63 - 1} at most"),
        ({**BASE, "maxTriggerDelay": "9" * 5_000}, "maxTriggerDelay: must be ms or a duration"),
        ({**BASE, "maxTriggerDelay": "9" * 5_000 + "d"}, "maxTriggerDelay: must be ms or a duration"),
        ({**BASE, "startingTimestamp": f"now-{'9' * 5_000}d"}, "startingTimestamp: must be milliseconds"),
        ({**BASE, "startingTimestamp": str(2**63)}, "startingTimestamp: must be milliseconds"),
    ],
)
def test_a_mistake_is_refused_with_the_options_name(given_options: dict[str, str], message: str) -> None:
    with pytest.raises(KafkaError, match=message):
        parse_source_options(given_options, streaming=False)


@pytest.mark.parametrize(
    ("servers", "message"),
    [
        ("nonsense", "bootstrap server 'nonsense' is not HOST:PORT"),
        ("x:1,nonsense", "bootstrap server 'nonsense' is not HOST:PORT"),
        ("http://x:1", "bootstrap server 'http://x:1' is not HOST:PORT; security.protocol=SSL asks for TLS"),
        ("SASL_SSL://x:1", "bootstrap server 'SASL_SSL://x:1' is not HOST:PORT; security.protocol=SSL asks for TLS"),
        ("x:" + "9" * 5_000, "bootstrap server 'x:9999"),
        ("x:1 y:2", "is not HOST:PORT"),
        ("", "is required"),
        ("  ", "is required"),
        (",", "no bootstrap server given"),
    ],
)
def test_servers_without_an_address_are_refused(servers: str, message: str) -> None:
    """Before a name is looked up, for seconds."""
    for parse in (lambda options: parse_source_options(options, streaming=True), parse_sink_options):
        with pytest.raises(KafkaError, match=f"option kafka.bootstrap.servers: .*{message}"):
            parse({**BASE, "kafka.bootstrap.servers": servers})


@pytest.mark.parametrize("servers", ["a:1, b:2,", "[::1]:9092", "PLAINTEXT://127.0.0.1:9092"])
def test_servers_have_the_forms_of_the_connector(servers: str) -> None:
    options = parse_source_options({**BASE, "kafka.bootstrap.servers": servers}, streaming=True)
    assert options.cluster.settings() == ClientSettings(servers)


READ_OPTIONS = sorted(NAMES["streaming read"] - {"kafka.client.rack"})
WRITE_OPTIONS = sorted(NAMES["write"])


@pytest.mark.parametrize("empty", ["", " "])
@pytest.mark.parametrize("name", READ_OPTIONS)
def test_an_empty_value_never_changes_a_read(name: str, empty: str) -> None:
    for streaming in (True, False):
        with pytest.raises(KafkaError, match=f"option {name}: (is empty|is required|names nothing to read)"):
            parse_source_options(_alone(name, {**BASE, name: empty}), streaming=streaming)


def _alone(name: str, options: dict[str, str]) -> dict[str, str]:
    """The options, without `subscribe` if another option names the topics."""
    return {
        option: value
        for option, value in options.items()
        if option != "subscribe" or name not in ("assign", "subscribePattern")
    }


@pytest.mark.parametrize("empty", ["", " "])
@pytest.mark.parametrize("name", WRITE_OPTIONS)
def test_an_empty_value_never_changes_a_write(name: str, empty: str) -> None:
    with pytest.raises(KafkaError, match=f"option {name}: (is empty|is required)"):
        parse_sink_options({**SINK, "exactlyOnce": "true", name: empty})


def test_an_empty_rack_is_no_rack() -> None:
    """The empty rack is the default of Kafka's consumer, and what a template without a rack leaves."""
    assert parse_source_options({**BASE, "kafka.client.rack": ""}, streaming=True).client_rack == ""


LONG = "9" * 5_000
_NASTY = st.sampled_from(
    [
        *("", " ", "\u00b2", "\x00", "null"),
        *(LONG, f"-{LONG}", f"now-{LONG}d", f"{LONG}s", f"{LONG}m", f"x:{LONG}", f"https://x:{LONG}"),
        *("[" * 100_000, "(" * 5_000, '{"a":' * 50_000, "a{9999999999}"),
        *(f'{{"a":{{"0":{LONG}}}}}', f'{{"a":{{"{LONG}":0}}}}', f'{{"a":[{LONG}]}}', '{"a":{"0":1e999}}', '{"a":NaN}'),
    ]
)


@given(st.sampled_from([*READ_OPTIONS, "kafka.client.rack"]), st.one_of(_NASTY, st.text()), st.booleans())
def test_no_value_of_a_read_fails_without_a_name(name: str, value: str, streaming: bool) -> None:
    """Spark hides any other error than a KafkaError behind one of its own."""
    _is_taken_or_refused(lambda: parse_source_options(_alone(name, {**BASE, name: value}), streaming=streaming))


@given(st.sampled_from(WRITE_OPTIONS), st.one_of(_NASTY, st.text()))
def test_no_value_of_a_write_fails_without_a_name(name: str, value: str) -> None:
    _is_taken_or_refused(lambda: parse_sink_options({**SINK, "exactlyOnce": "true", name: value}))


def _is_taken_or_refused(parse: Callable[[], object]) -> None:
    try:
        parse()
    except KafkaError as refusal:
        assert refusal.detail.startswith("option "), refusal


@pytest.mark.parametrize(
    ("timeout", "message"),
    [
        ("0", "must be a whole number above 0"),
        (str(2**31), "must be 2147483647 at most"),
        ("9" * 5_000, "must be 2147483647 at most"),
    ],
)
def test_the_timeout_of_a_transaction_is_one_that_a_request_can_have(timeout: str, message: str) -> None:
    with pytest.raises(KafkaError, match=f"option kafka.transaction.timeout.ms: {message}"):
        parse_sink_options({**SINK, "exactlyOnce": "true", "kafka.transaction.timeout.ms": timeout})


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("startingOffset", "did you mean startingOffsets?"),
        ("maxoffsetpertrigger", "did you mean maxOffsetsPerTrigger?"),
        ("kafka.bootstrap.server", "did you mean kafka.bootstrap.servers?"),
        ("kafka.fetch.min.bytes", "option kafka.fetch.min.bytes has no meaning here and is ignored"),
    ],
)
def test_an_unknown_option_is_ignored_with_a_warning(name: str, message: str, caplog: pytest.LogCaptureFixture) -> None:
    """As in Spark's connector, but with a log line: a misspelt option may change the start of a read."""
    parse_source_options({**BASE, name: "1"}, streaming=True)
    assert message in caplog.text


def test_spaces_around_a_value_are_not_part_of_it() -> None:
    """As in Spark's connector."""
    given = {"kafka.bootstrap.servers": "x:1", "subscribePattern": " flights$ ", "startingTimestamp": " 1500 "}
    options = parse_source_options(given, streaming=True)
    assert (options.subscription.pattern, options.starting.timestamp) == ("flights$", 1500)
    assert parse_sink_options({**SINK, "topic": " flights "}).topic == "flights"


READS = ("failOnDataLoss", "startingOffsets", "subscribe", "minPartitions", "kafka.isolation.level")
STREAMS = ("maxOffsetsPerTrigger", "minOffsetsPerTrigger", "maxTriggerDelay", "kafka.group.id")
WRITES = ("topic", "kafka.acks", "kafka.compression.type", "kafka.max.request.size")
NOBODY = (
    "kafka.client.id",
    "kafka.linger.ms",
    "groupIdPrefix",
    "fetchOffset.numRetries",
    "fetchOffset.retryIntervalMs",
)


def _warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    """Log lines of the options here: threads that other tests have left behind may log too."""
    ours = (given_options.__name__, threading.get_ident())
    return [record.getMessage() for record in caplog.records if (record.name, record.thread) == ours]


def _parse(kind: str, options: dict[str, str]) -> None:
    if kind == "write":
        parse_sink_options({**SINK, **options})
    else:
        parse_source_options({**BASE, **options}, streaming=kind == "stream read")


@pytest.mark.parametrize(
    ("kind", "names", "message"),
    [
        ("batch read", STREAMS, "is for streaming reads and is ignored"),
        ("batch read", WRITES, "is for writes and is ignored"),
        ("stream read", WRITES, "is for writes and is ignored"),
        ("write", READS, "is for reads and is ignored"),
        ("write", STREAMS, "is for streaming reads and is ignored"),
        ("batch read", NOBODY, "has no meaning here and is ignored"),
        ("stream read", NOBODY, "has no meaning here and is ignored"),
        ("write", NOBODY, "has no meaning here and is ignored"),
    ],
)
def test_an_option_without_effect_is_ignored_with_a_warning(
    kind: str, names: tuple[str, ...], message: str, caplog: pytest.LogCaptureFixture
) -> None:
    """An option that limits or compresses a batch read is ignored with a warning."""
    for name in names:
        caplog.clear()
        _parse(kind, {name: "15m" if name == "maxTriggerDelay" else "15"})
        assert _warnings(caplog) == [f"option {name.lower() if names is NOBODY else name} {message}"]


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        ("batch read", {"includeHeaders": "true", "path": "p", "endingOffsets": "latest", "minPartitions": "2"}),
        ("stream read", {"maxOffsetsPerTrigger": "1", "kafka.group.id": "g", "failOnDataLoss": "false"}),
        ("write", {"includeHeaders": "true", "kafka.acks": "all", "kafka.compression.type": "gzip"}),
        ("write", {"kafka.max.request.size": "5", "checkpointLocation": "/c", "queryName": "q"}),
    ],
)
def test_options_with_an_effect_and_sparks_own_give_no_warning(
    kind: str, options: dict[str, str], caplog: pytest.LogCaptureFixture
) -> None:
    _parse(kind, options)
    assert _warnings(caplog) == []


@pytest.mark.parametrize("streaming", [True, False])
def test_the_rack_is_that_of_the_consumer(streaming: bool) -> None:
    assert parse_source_options(BASE, streaming=streaming).client_rack == ""
    assert parse_source_options({**BASE, "kafka.client.rack": "a"}, streaming=streaming).client_rack == "a"


def test_the_isolation_level_is_that_of_the_consumer() -> None:
    assert parse_source_options(BASE, streaming=True).isolation == "read_uncommitted"
    committed = parse_source_options({**BASE, "kafka.isolation.level": "READ_COMMITTED"}, streaming=True)
    assert committed.isolation == "read_committed"


def test_one_timestamp_wins_over_timestamps_and_offsets() -> None:
    options = parse_source_options(
        {
            **BASE,
            "startingTimestamp": "17",
            "startingOffsetsByTimestamp": '{"flights":{"0":3}}',
            "startingOffsets": "earliest",
        },
        streaming=True,
    )
    assert options.starting.timestamp == 17


def test_a_stream_has_no_ending_offsets() -> None:
    with pytest.raises(KafkaError, match="availableNow"):
        parse_source_options({**BASE, "endingOffsets": '{"flights":{"0":3}}'}, streaming=True)


@pytest.mark.parametrize("acks", ["0", "1"])
def test_fewer_acknowledgements_are_taken_as_all_with_a_warning(acks: str, caplog: pytest.LogCaptureFixture) -> None:
    parse_sink_options({**SINK, "kafka.acks": acks})
    assert f"option kafka.acks: {acks} is taken as all" in caplog.text


def test_acknowledgements_that_do_not_exist_are_refused() -> None:
    with pytest.raises(KafkaError, match="kafka.acks: must be all, -1, 0 or 1, not '2'"):
        parse_sink_options({**SINK, "kafka.acks": "2"})


@pytest.mark.parametrize(("text", "size"), [("1048576", 2**20), ("64m", 2**26), ("1G", 2**30), ("3kb", 3072)])
def test_bytes_have_the_forms_of_sparks_own_settings(text: str, size: int) -> None:
    assert parse_source_options({**BASE, "maxBytesPerTrigger": text}, streaming=True).max_bytes_per_trigger == size


@pytest.mark.parametrize("text", ["0", "0m", "-1", "1t", "m", "1.5g", "\u00b2", "9" * 19, "9" * 10 + "g"])
def test_bytes_that_are_no_number_above_0_are_refused(text: str) -> None:
    with pytest.raises(KafkaError, match="maxBytesPerTrigger: must be a number of bytes above 0"):
        parse_source_options({**BASE, "maxBytesPerTrigger": text}, streaming=True)


def test_a_delay_without_a_unit_is_milliseconds() -> None:
    assert parse_source_options({**BASE, "maxTriggerDelay": "10000"}, streaming=True).max_trigger_delay_ms == 10_000


@pytest.mark.parametrize("of_a_table", [{}, {"option.path": "p", "path": "p", "owner": "o", "provider": "t"}])
def test_a_table_of_the_catalog_says_how_its_options_are_given(of_a_table: dict[str, str]) -> None:
    with pytest.raises(KafkaError, match=r"SELECT \.\.\. FROM t WITH \(`kafka.bootstrap.servers` = "):
        parse_source_options({"subscribe": "a", **of_a_table} if of_a_table else {}, streaming=False)


@pytest.mark.parametrize(("text", "ms"), [("500ms", 500), ("30s", 30_000), ("15m", 900_000), ("1 h", 3_600_000)])
def test_durations(text: str, ms: int) -> None:
    assert parse_duration_ms(text) == ms


offsets = st.dictionaries(
    st.builds(TopicPartition, st.sampled_from(["b", "a", "c"]), st.integers(0, 12)), st.integers(0, 2**63 - 1)
)


@given(offsets)
def test_offsets_survive_their_json(positions: dict[TopicPartition, int]) -> None:
    assert from_json_dict(json.loads(json.dumps(to_json_dict(positions)))) == positions


@given(offsets)
def test_the_same_offsets_are_always_the_same_text(positions: dict[TopicPartition, int]) -> None:
    """Spark compares the text; another order of keys would run an empty batch at every trigger."""
    reordered = dict(reversed(positions.items()))
    assert json.dumps(to_json_dict(positions)) == json.dumps(to_json_dict(reordered))


def test_partitions_are_in_numeric_order() -> None:
    many = {TopicPartition("t", partition): 0 for partition in (10, 9, 2)}
    assert list(to_json_dict(many)["t"]) == ["2", "9", "10"]


@pytest.mark.parametrize(
    ("location", "place"),
    [
        ("file:///a/b", "file:/a/b"),
        ("file:/a/b", "file:/a/b"),
        ("file:/a/b/", "file:/a/b"),
        ("/a/b/", "/a/b"),
        ("checkpoint", "checkpoint"),
        ("/", "/"),
        ("hdfs://name/a", "hdfs://name/a"),
        ("s3a://bucket//a", "s3a://bucket//a"),
    ],
)
def test_a_checkpoint_has_one_name(location: str, place: str) -> None:
    """Spark Declarative Pipelines give the same checkpoint as `file:///a` in their first run and as `file:/a` later."""
    options = parse_sink_options({**SINK, "exactlyOnce": "true", "checkpointLocation": location})
    assert options.transactions is not None
    assert options.transactions.checkpoint == place
