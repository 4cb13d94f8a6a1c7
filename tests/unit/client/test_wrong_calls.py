"""Wrong calls of clients: the error has the class that the user has typed, the right form, and names near by."""

import inspect
from typing import Any
from unittest.mock import create_autospec
from uuid import uuid4

import pytest

import tailrace
from tailrace import Admin, Consumer, KafkaError, Producer, RecordNotWritten, aio
from tailrace.client.hints import call_hints
from tailrace.model.errors import ErrorCode

SERVERS = "127.0.0.1:1"

WRONG = [
    (
        "Producer",
        "send",
        ("t",),
        {"on_delivery": print},
        "has no argument 'on_delivery'; the future that send() returns",
    ),
    ("Producer", "send", ("t",), {"partitions": 1}, "has no argument 'partitions'; did you mean 'partition'?"),
    ("Producer", "send", ("t", b"v", b"k", 0), {}, "too many positional arguments; the call is send(topic, value=None"),
    ("Producer", "flush", (), {"timeout_s": 1}, "did you mean 'timeout'? It is in seconds (the call is flush(timeout"),
    ("Producer", "begin_transaction", (1,), {}, "too many positional arguments; the call is begin_transaction()"),
    (
        "Consumer",
        "poll",
        (),
        {"max_poll_records": 1},
        "did you mean 'max_records'? (the call is poll(timeout=1.0, *, time",
    ),
    (
        "Consumer",
        "subscribe",
        (["t"], None, None),
        {},
        "the call is subscribe(topics=(), *, pattern=None, listener=None)",
    ),
    ("Consumer", "subscribe", (["t"],), {"on_assign": print}, "listener=... takes a ConsumerRebalanceListener"),
    ("Consumer", "commit", (), {"asynchronous": False}, "commit() waits for the answer"),
    (
        "Consumer",
        "seek",
        ("t",),
        {},
        "missing a required argument: 'offset'; the call is seek(topic_partition, offset)",
    ),
    ("Consumer", "end_offsets", (), {}, "missing a required argument: 'partitions'"),
    ("Consumer", "close", (), {"autocommit": False}, "close() commits by the setting enable_auto_commit"),
    ("Admin", "create_topics", ([],), {"validate_onl": True}, "create_topics() has no argument 'validate_onl'"),
    ("Admin", "list_topics", (), {"timeout": 10}, "list_topics() has no argument 'timeout'"),
    ("Admin", "close", (1,), {}, "too many positional arguments; the call is close()"),
    ("RangedFetch", "fetch_range", (("t", 0), 0), {}, "missing a required argument: 'end'"),
    ("KeyedConsumer", "run", (print,), {"workers": 4}, "has no argument 'workers'"),
]


@pytest.mark.parametrize("face", [tailrace, aio], ids=lambda face: face.__name__)
@pytest.mark.parametrize(("client", "call", "args", "keywords", "text"), WRONG, ids=lambda value: str(value)[:30])
def test_a_wrong_call_is_explained_under_the_name_of_the_class(
    face: Any, client: str, call: str, args: tuple[Any, ...], keywords: dict[str, Any], text: str
) -> None:
    made = getattr(face, client)(SERVERS, **({"group": "g", "topics": ["t"]} if client == "KeyedConsumer" else {}))
    with pytest.raises(TypeError) as caught:
        getattr(made, call)(*args, **keywords)
    assert str(caught.value).startswith(f"{client}.{call}()")
    assert text in str(caught.value)
    assert caught.value.__cause__ is caught.value.__context__ is None


ABSENT = [
    ("Producer", "produce", "Producer has no call 'produce'; send(topic, value, key) hands a record over"),
    ("Consumer", "commit_async", "Consumer has no call 'commit_async'; commit() waits for the answer"),
    ("Consumer", "consume", "Consumer has no call 'consume'; poll(timeout, max_records=...) returns a list of records"),
    ("Admin", "create_topic", "Admin has no call 'create_topic'; create_topics([NewTopic('orders', partitions=3)])"),
    ("KeyedConsumer", "poll", "KeyedConsumer has no call 'poll'; run(handler) calls the handler with each record"),
    ("RangedFetch", "fetch", "RangedFetch has no call 'fetch'; fetch_range(partition, start, end) returns"),
]


@pytest.mark.parametrize("face", [tailrace, aio], ids=lambda face: face.__name__)
@pytest.mark.parametrize(("client", "call", "text"), ABSENT, ids=lambda value: str(value)[:30])
def test_an_absent_call_names_the_call_in_its_place(face: Any, client: str, call: str, text: str) -> None:
    kind = getattr(face, client)
    made = kind(SERVERS, **({"group": "g", "topics": ["t"]} if client == "KeyedConsumer" else {}))
    with pytest.raises(AttributeError) as caught:
        getattr(made, call)
    assert str(caught.value).startswith(text)
    assert not hasattr(kind, call)
    assert call not in {*dir(kind), *dir(made)}


def test_the_calls_that_hints_name_exist() -> None:
    named = {
        (client, call, hint.partition("(")[0].rpartition(" ")[2].rpartition(".")[2])
        for client, hints in call_hints._ABSENT.items()
        for call, hint in hints.items()
        if hint.partition("(")[0].rpartition(" ")[0] == ""
    }
    assert len(named) > 30
    missing = [
        (client, call, name)
        for client, call, name in named
        if name and not any(hasattr(getattr(tailrace, kind), name) for kind in (client, "Admin"))
    ]
    assert missing == []


def test_an_error_of_the_call_itself_is_unchanged(servers: str) -> None:
    value: Any = "text"
    with Producer(servers) as producer, pytest.raises(TypeError, match="^value must be bytes or None, not str"):
        producer.send("t", value)


def test_a_timestamp_has_the_name_of_kafka_python_too(servers: str) -> None:
    topic = f"stamped-{uuid4()}"
    with Producer(servers) as producer:
        assert producer.send_and_wait(topic, b"v", timestamp_ms=1_000).timestamp == 1_000
        producer.send(topic, b"v", timestamp=2_000, timestamp_ms=2_000).result()
        with pytest.raises(KafkaError, match="timestamp and timestamp_ms are names of the same argument"):
            producer.send(topic, b"v", timestamp=1, timestamp_ms=2)
    with Consumer(servers, topics=[topic], auto_offset_reset="earliest", until="end") as consumer:
        assert [record.timestamp for record in consumer] == [1_000, 2_000]


def test_a_producer_that_closes_in_time_writes_its_records(servers: str) -> None:
    producer = Producer(servers, linger_ms=60_000)
    sent = producer.send(f"closed-{uuid4()}", b"v")
    producer.close(timeout=120)
    assert sent.result().offset == 0


def test_a_producer_whose_time_to_close_is_over_fails_its_records() -> None:
    producer = Producer(SERVERS, bootstrap_timeout_ms=60_000)
    sent = producer.send("t", b"v")
    with pytest.raises(KafkaError, match="1 record was not written: t: ") as caught:
        producer.close(timeout_ms=1)
    assert caught.value.code is ErrorCode.REQUEST_TIMED_OUT
    with pytest.raises(RecordNotWritten, match="the producer was closed before the record was written"):
        sent.result()
    producer.close()


def test_a_producer_of_a_hung_server_gives_up_records_in_flight(servers: str) -> None:
    with Admin(servers) as admin:
        admin.create_topics([topic := f"hung-{uuid4()}"])
    producer = Producer(servers)
    producer.send_and_wait(topic, b"v")
    sent = producer.send(topic, b"v")
    try:
        producer.close(timeout=0)
    except KafkaError as error:
        assert "was not written" in error.detail
    assert sent.done()


def test_a_consumer_closes_within_its_time(servers: str) -> None:
    topic = f"closed-{uuid4()}"
    with Producer(servers) as producer:
        producer.send_and_wait(topic, b"v")
    consumer = Consumer(servers, group=topic, topics=[topic], auto_offset_reset="earliest")
    assert consumer.poll(60)
    consumer.close(timeout=60)
    with Admin(servers) as admin:
        assert admin.describe_groups([topic])[0].members == ()
    Consumer(servers, group=topic, topics=[topic]).close(timeout_ms=0)


@pytest.mark.parametrize(
    ("client", "call"),
    [
        ("Admin", "list_topics"),
        ("Admin", "close"),
        ("Consumer", "poll"),
        ("KeyedConsumer", "close"),
        ("Producer", "flush"),
        ("Producer", "commit_transaction"),
    ],
)
def test_a_mock_of_a_client_knows_which_calls_are_awaited(client: str, call: str) -> None:
    awaited, plain = (create_autospec(getattr(face, client), instance=True) for face in (aio, tailrace))
    coroutine = getattr(awaited, call)()
    assert inspect.iscoroutine(coroutine)
    coroutine.close()
    assert not inspect.iscoroutine(getattr(plain, call)())
