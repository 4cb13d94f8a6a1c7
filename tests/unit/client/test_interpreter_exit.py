"""A program that ends without closing its clients ends soon, and its records are flushed first."""

import subprocess
import sys
from pathlib import Path

import pytest

import tailrace
from tailrace.client.blocking import Admin
from tailrace.client.offsets import LATEST
from tailrace.model.partitions import TopicPartition
from tailrace.testing import Cluster
from unit.client.new_topics import new_topic

START = """
import sys
from tailrace.client.blocking import Consumer, Producer, RangedFetch
from tailrace.model.partitions import TopicPartition
bootstrap, topic = sys.argv[1:]
"""


def _run(program: str, bootstrap: str, topic: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-c", START + program, bootstrap, topic],
        env={"PYTHONPATH": str(Path(tailrace.__file__).parent.parent)},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )


@pytest.fixture
def topic(tailrace_cluster: Cluster) -> str:
    """A topic with one record."""
    return new_topic(tailrace_cluster, b"first")


def test_records_without_a_flush_are_written_before_the_interpreter_ends(tailrace_cluster: Cluster, topic: str) -> None:
    patient = "import tailrace.client.blocking.producer as b\nb.EXIT_FLUSH_S = 60\n"
    program = patient + "p = Producer(bootstrap)\nfor _ in range(1000): p.send(topic, b'v')"
    ended = _run(program, tailrace_cluster.bootstrap_servers, topic)
    assert (ended.returncode, ended.stderr) == (0, "")
    with Admin(tailrace_cluster.bootstrap_servers) as admin:
        partition = TopicPartition(topic, 0)
        assert admin.list_offsets({partition: LATEST})[partition].offset == 1001


def test_records_that_cannot_be_written_any_more_are_reported(topic: str) -> None:
    hasty = "import tailrace.client.blocking.producer as b\nb.EXIT_FLUSH_S = 0.2\n"
    program = hasty + "p = Producer(bootstrap)\np.send(topic, b'v')"
    ended = _run(program, "127.0.0.1:1", topic)
    assert ended.returncode == 0
    assert "bytes of records were not written before the interpreter ended" in ended.stderr


def test_a_range_that_was_not_read_to_its_end_does_not_keep_the_interpreter(
    tailrace_cluster: Cluster, topic: str
) -> None:
    """The background thread stops before the last objects are freed: a call that waits for it would wait for ever."""
    program = "for _ in RangedFetch(bootstrap).fetch_range(TopicPartition(topic, 0), 0, 1000): raise SystemExit(7)"
    ended = _run(program, tailrace_cluster.bootstrap_servers, topic)
    assert (ended.returncode, ended.stderr) == (7, "")
    kept = "it = RangedFetch(bootstrap).fetch_range(TopicPartition(topic, 0), 0, 1000)\nnext(it)"
    assert _run(kept, tailrace_cluster.bootstrap_servers, topic).returncode == 0


def test_consumers_that_were_not_closed_leave_nothing_running(topic: str) -> None:
    """A task that is freed while it waits may log an error on stderr; that depends on the order of freeing."""
    program = (
        "import asyncio, atexit\n"
        "from tailrace.client.loop_thread import loop_thread\n"
        "from tailrace.client.blocking import consumer\n"
        "consumer._EXIT_STOP_S = 60\n"
        "atexit.unregister(consumer._close_at_exit)\n"
        "def left():\n"
        "    consumer._close_at_exit()\n"
        "    async def tasks(): return [repr(t) for t in asyncio.all_tasks() if t is not asyncio.current_task()]\n"
        "    print(loop_thread().call(tasks()))\n"
        "atexit.register(left)\n"
        "import logging; logging.disable(logging.CRITICAL)\n"
        "kept = [Consumer(bootstrap, group='g', topics=[topic]) for _ in range(5)]\n"
        "for c in kept: c.poll(0.3)\n"
        "kept.append(Consumer(bootstrap)); kept[-1].assign([TopicPartition(topic, 0)]); kept[-1].poll(0.3)\n"
    )
    ended = _run(program, "127.0.0.1:1", topic)
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "[]\n", "")


def test_the_background_thread_ends_before_the_interpreter(topic: str) -> None:
    """A timer of a thread that is left calls into an interpreter that is gone: SIGSEGV instead of the exit code.

    Functions of the C library's `on_exit` run at that time: sleep(status) makes it long enough for the timer.
    """
    program = (
        "import ctypes\n"
        "from tailrace.client.loop_thread import loop_thread\n"
        "library = ctypes.CDLL(None)\n"
        "library.on_exit(library.sleep, None)\n"
        "async def later(): loop_thread().loop.call_later(1, print)\n"
        "loop_thread().call(later())\n"
        "sys.exit(2)\n"
    )
    assert _run(program, "127.0.0.1:1", topic).returncode == 2


def test_a_member_that_was_not_closed_says_what_its_group_waits_for(tailrace_cluster: Cluster, topic: str) -> None:
    program = (
        "c = Consumer(bootstrap, group=topic, topics=[topic], auto_offset_reset='earliest')\nwhile not c.poll(60): pass"
    )
    ended = _run(program, tailrace_cluster.bootstrap_servers, topic)
    assert ended.returncode == 0
    assert f"a consumer of group {topic!r} ends without close(): 1 of the partitions" in ended.stderr
    closed = _run(
        program.replace("group=topic", "group=topic + '-2'") + "\nc.close()", tailrace_cluster.bootstrap_servers, topic
    )
    assert (closed.returncode, closed.stderr.count("without close")) == (0, 0)
