"""The keyed consumer that blocks: threads, ends, and the names that users import."""

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

import tailrace
from tailrace import Admin, Done, KeyedConsumer, KeyedRecord, Outcome, Producer, Retry, Skip
from tailrace.client.reader_settings import GroupProtocol
from tailrace.model.errors import KafkaError
from tailrace.testing import Cluster
from unit.client.new_topics import new_topic

KEYS, RECORDS = 4, 80


@pytest.fixture
def topic(tailrace_cluster: Cluster) -> str:
    """Records of four keys; the values of a key count up."""
    name = new_topic(tailrace_cluster, partitions=2)
    with Producer(tailrace_cluster.bootstrap_servers) as producer:
        for number in range(RECORDS):
            producer.send(name, b"%d" % (number // KEYS), key=b"%d" % (number % KEYS))
    return name


def test_a_handler_runs_in_threads_until_it_stops_the_run(
    tailrace_cluster: Cluster, topic: str, group_protocol: GroupProtocol
) -> None:
    lock = threading.Lock()
    values: dict[bytes | None, list[int]] = {}
    retried: list[KeyedRecord] = []
    group = f"group-{topic}"
    consumer = KeyedConsumer(
        tailrace_cluster.bootstrap_servers, group=group, topics=[topic], decode=int, group_protocol=group_protocol
    )

    def handle(record: KeyedRecord) -> Outcome:
        assert threading.current_thread().name.startswith("tailrace-handler")
        with lock:
            if record.value == 3 and record.attempt == 1:
                retried.append(record)
                return Retry(0)
            values.setdefault(record.key, []).append(record.value)
            if sum(map(len, values.values())) == RECORDS:
                consumer.stop()
        return Skip("the last") if record.value == RECORDS // KEYS - 1 else Done()

    consumer.run(handle, concurrency=4)
    metrics = consumer.metrics()
    assert (metrics.done_total, metrics.skipped_total, metrics.retried_total) == (RECORDS - KEYS, KEYS, KEYS)
    consumer.close()
    assert values == {b"%d" % key: list(range(RECORDS // KEYS)) for key in range(KEYS)}
    assert len(retried) == KEYS
    with Admin(tailrace_cluster.bootstrap_servers) as admin:
        assert sum(at.offset for at in admin.group_offsets(group).values()) == RECORDS


def test_a_coroutine_function_is_a_handler_too(tailrace_cluster: Cluster, topic: str) -> None:
    count = 0
    with KeyedConsumer(tailrace_cluster.bootstrap_servers, group=f"group-{topic}", topics=[topic]) as consumer:

        async def handle(record: KeyedRecord) -> None:
            nonlocal count
            count += 1
            if count == RECORDS:
                consumer.stop()

        consumer.run(handle)
    assert count == RECORDS


def test_bad_settings_are_refused_at_once() -> None:
    with pytest.raises(KafkaError, match="has a group"):
        KeyedConsumer("127.0.0.1:1", group="", topics=["orders"])


def test_a_fault_that_no_retry_cures_is_raised_by_the_run(tailrace_cluster: Cluster, topic: str) -> None:
    consumer = KeyedConsumer(
        tailrace_cluster.bootstrap_servers, group=f"group-{topic}", topics=[topic], auto_offset_reset="none"
    )
    with pytest.raises(KafkaError, match=r"auto.offset.reset is none"):
        consumer.run(lambda record: None)


@pytest.mark.parametrize("is_async", [False, True], ids=["thread", "coroutine"])
def test_the_end_of_the_program_is_raised_by_the_run_and_the_loop_goes_on(
    tailrace_cluster: Cluster, topic: str, is_async: bool
) -> None:
    """The loop is that of all clients of the process."""
    ends: list[BaseException] = [SystemExit(3), KeyboardInterrupt()]

    def handle(record: KeyedRecord) -> None:
        raise end

    async def handle_on_the_loop(record: KeyedRecord) -> None:
        raise end

    for end in ends:
        with KeyedConsumer(
            tailrace_cluster.bootstrap_servers, group=f"group-{topic}", topics=[topic], grace_ms=0
        ) as consumer:
            with pytest.raises(type(end)) as caught:
                consumer.run(handle_on_the_loop if is_async else handle)
            assert caught.value is end
            assert consumer.metrics().failed_total == 0
    with Admin(tailrace_cluster.bootstrap_servers) as admin:
        admin.describe_topics([topic])


PROGRAM = """
import signal, sys
from tailrace import KeyedConsumer
servers, topic, protocol = sys.argv[1:]
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell may have its background processes ignore it

def handle(record):
    print("begun", flush=True)
    sys.stdin.readline()
    print("done", record.offset, flush=True)

KeyedConsumer(servers, group="group-" + topic, topics=[topic], group_protocol=protocol).run(handle, concurrency=1)
"""


def test_an_interrupted_run_finishes_what_runs_and_commits_it(
    tailrace_cluster: Cluster, topic: str, group_protocol: GroupProtocol
) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, tailrace_cluster.bootstrap_servers, topic, group_protocol],
        env={**os.environ, "PYTHONPATH": str(Path(tailrace.__file__).parent.parent)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    assert process.stdout.readline() == "begun\n"
    process.send_signal(signal.SIGINT)
    output, errors = process.communicate("go on\n" * 2, timeout=60)
    assert output.splitlines()[0].startswith("done 0")
    assert "KeyboardInterrupt" in errors
    with Admin(tailrace_cluster.bootstrap_servers) as admin:
        committed = sum(at.offset for at in admin.group_offsets(f"group-{topic}").values())
    assert committed == output.count("done ")


ENDING = """
import sys, threading, time
from tailrace import KeyedConsumer
servers, topic = sys.argv[1:]
begun = threading.Event()

def handle(record):
    begun.set()
    print("begun", flush=True)
    while not consumer._client.existing()._work.queue.is_stopped:  # the interpreter has begun to end
        time.sleep(0.01)
    print("done", record.offset, flush=True)

consumer = KeyedConsumer(servers, group="group-" + topic, topics=[topic])
threading.Thread(target=consumer.run, args=(handle,), kwargs={"concurrency": 1}, daemon=True).start()
begun.wait()
"""


def test_the_end_of_the_interpreter_waits_for_a_handler_in_a_thread_and_begins_no_other(
    tailrace_cluster: Cluster, topic: str
) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", ENDING, tailrace_cluster.bootstrap_servers, topic],
        env={**os.environ, "PYTHONPATH": str(Path(tailrace.__file__).parent.parent)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        output, errors = process.communicate(timeout=60)
    finally:
        process.kill()
    assert (output, errors) == ("begun\ndone 0\n", "")
    assert process.returncode == 0


ENDING_LOOP = """
import asyncio, sys, threading
from tailrace import KeyedConsumer
servers, topic = sys.argv[1:]
begun = threading.Event()

async def handle(record):
    begun.set()
    await asyncio.Event().wait()

consumer = KeyedConsumer(servers, group="group-" + topic, topics=[topic])
threading.Thread(target=consumer.run, args=(handle,), daemon=True).start()
begun.wait()
"""


def test_the_end_of_the_interpreter_ends_a_run_with_coroutines_in_a_daemon_thread_without_a_word(
    tailrace_cluster: Cluster, topic: str
) -> None:
    ended = subprocess.run(
        [sys.executable, "-c", ENDING_LOOP, tailrace_cluster.bootstrap_servers, topic],
        env={**os.environ, "PYTHONPATH": str(Path(tailrace.__file__).parent.parent)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "", "")


KILLED = """
import os, sys
from tailrace import KeyedConsumer
servers, topic = sys.argv[1:]

def handle(record):
    os.write(1, b"%d %d\\n" % (record.partition, record.offset))  # whole, beside the other thread's

consumer = KeyedConsumer(
    servers,
    group="group-" + topic,
    topics=[topic],
    group_protocol="classic",
    group_instance_id="one",
    auto_commit_interval_ms=1,
)
consumer.run(handle, concurrency=2)
"""


def test_a_killed_process_loses_nothing_and_what_it_has_committed_does_not_come_again(
    tailrace_cluster: Cluster, topic: str
) -> None:
    """A static member: the process that comes next takes the member's place at once."""
    process = subprocess.Popen(
        [sys.executable, "-c", KILLED, tailrace_cluster.bootstrap_servers, topic],
        env={**os.environ, "PYTHONPATH": str(Path(tailrace.__file__).parent.parent)},
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    lines = [process.stdout.readline() for _ in range(RECORDS // 2)]
    process.kill()
    lines += process.communicate()[0].splitlines()
    seen = {tuple(map(int, line.split())) for line in lines}
    with Admin(tailrace_cluster.bootstrap_servers) as admin:
        committed = {name.partition: at.offset for name, at in admin.group_offsets(f"group-{topic}").items()}
    lock = threading.Lock()
    with KeyedConsumer(
        tailrace_cluster.bootstrap_servers,
        group=f"group-{topic}",
        topics=[topic],
        group_protocol="classic",
        group_instance_id="one",
    ) as consumer:
        early: list[KeyedRecord] = []

        def handle(record: KeyedRecord) -> None:
            with lock:
                if record.offset < committed.get(record.partition, 0):
                    early.append(record)
                seen.add((record.partition, record.offset))
                if len(seen) == RECORDS:
                    consumer.stop()

        if len(seen) < RECORDS:
            consumer.run(handle)
    assert early == []
    assert len(seen) == RECORDS
