"""A client that is dropped without `close`: its records are written, its member leaves, and nothing is printed."""

import asyncio
import gc
import logging
import subprocess
import sys
from typing import Any, Literal
from uuid import uuid4

import pytest

from tailrace import aio
from tailrace.client.blocking import Admin, Consumer, Producer

SECONDS = 60.0
TIMES = 50


@pytest.fixture
def topic(servers: str) -> str:
    name = f"dropped-{uuid4()}"
    with Admin(servers) as admin:
        admin.create_topics([name])
    return name


def values(servers: str, topic: str, until: Literal["end"] | int) -> list[int]:
    """The values of the topic; waits for an offset that is to come."""
    with Consumer(servers, topics=[topic], auto_offset_reset="earliest", until=until) as consumer:
        return sorted(int(record.value or b"") for record in consumer)


def test_records_of_producers_that_are_dropped_are_written(
    servers: str, topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    for number in range(TIMES):
        Producer(servers).send(topic, b"%d" % number)
    gc.collect()
    assert values(servers, topic, TIMES) == list(range(TIMES))
    gc.collect()
    assert caplog.messages == []


def test_a_consumer_that_is_dropped_leaves_its_group_and_commits_no_record_of_its_last_poll(
    servers: str, topic: str
) -> None:
    group = str(uuid4())
    with Producer(servers) as producer:
        for number in range(4):
            producer.send(topic, b"%d" % number)
    settings: dict[str, Any] = {
        "group": group,
        "topics": [topic],
        "auto_offset_reset": "earliest",
        "session_timeout_ms": 600_000,
    }

    def read(most: int) -> list[bytes | None]:
        consumer = Consumer(servers, **settings)
        first = consumer.poll(SECONDS, max_records=most)
        return [record.value for record in (*first, *consumer.poll(SECONDS, max_records=1))]

    assert read(2) == [b"0", b"1", b"2"]
    gc.collect()
    with Consumer(servers, **settings) as after:
        assert after.poll(SECONDS)[0].value == b"2", "the session lasts longer than this test"


@pytest.mark.parametrize("is_collected", [True, False])
def test_the_end_of_the_program_waits_for_dropped_producers(servers: str, topic: str, is_collected: bool) -> None:
    program = f"""
import gc
from tailrace import Producer
for number in range({TIMES}):
    Producer({servers!r}).send({topic!r}, b"%d" % number)
if {is_collected}:
    gc.collect()
"""
    ended = subprocess.run(
        [sys.executable, "-W", "default", "-c", program], capture_output=True, timeout=120, check=False
    )
    assert (ended.returncode, ended.stderr) == (0, b"")
    assert values(servers, topic, "end") == list(range(TIMES))


def test_records_of_asyncio_producers_that_are_dropped_are_written_while_their_loop_runs(
    servers: str, topic: str
) -> None:
    """A program of its own: the sockets of the dropped producers live as long as the loop."""
    program = f"""
import asyncio, gc
from tailrace import aio

async def send(number):
    producer = aio.Producer({servers!r})
    producer.start()
    await producer.send({topic!r}, b"%d" % number)

async def main():
    for number in range({TIMES}):
        await send(number)
        gc.collect()
    consumer = aio.Consumer(
        {servers!r}, topics=[{topic!r}], auto_offset_reset="earliest", until={TIMES}
    )
    async with consumer:
        print(sorted([int(record.value) async for record in consumer]))

asyncio.run(main())
"""
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, timeout=120, check=False)
    assert (ended.returncode, ended.stderr) == (0, b"")
    assert ended.stdout.decode().strip() == str(list(range(TIMES)))


def test_the_end_of_a_loop_with_unsent_records_is_one_line(topic: str, caplog: pytest.LogCaptureFixture) -> None:
    async def send() -> None:
        producer = aio.Producer("127.0.0.1:1", linger_ms=60_000)
        producer.start()
        await producer.send(topic, b"v")

    asyncio.run(send())
    gc.collect()
    lines = [line.getMessage() for line in caplog.records if line.levelno >= logging.ERROR]
    assert lines == ["records were not written before the event loop ended: use `async with`, or call close()"]
