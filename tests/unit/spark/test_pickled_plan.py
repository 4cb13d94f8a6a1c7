"""Readers and writers unpickled in a Python of Spark's workers, with and without Tailrace."""

import pickle
import subprocess
import sys

import pytest
from pyspark import cloudpickle

from tailrace.spark.reading.readers import TailraceReader
from tailrace.spark.reading.source_options import parse_source_options
from tailrace.spark.reading.stream_reader import TailraceStreamReader
from tailrace.spark.source import ROW
from tailrace.spark.writing.sink import TailraceStreamWriter, TailraceWriter
from tailrace.spark.writing.sink_options import parse_sink_options

SERVERS = {"kafka.bootstrap.servers": "127.0.0.1:9"}
SOURCE = parse_source_options({**SERVERS, "subscribe": "orders"}, streaming=False)
SINK = parse_sink_options({**SERVERS, "topic": "orders"})
PLANS = [
    TailraceReader(ROW, SOURCE),
    TailraceStreamReader(ROW, SOURCE),
    TailraceWriter(ROW, SINK),
    TailraceStreamWriter(ROW, SINK),
]
WITHOUT_TAILRACE = """
import pickle, sys

class Without:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "tailrace":
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Without())
pickle.load(sys.stdin.buffer)
"""


@pytest.mark.parametrize("plan", PLANS, ids=lambda plan: type(plan).__name__)
def test_a_worker_without_tailrace_says_so_and_the_way_out(plan: object) -> None:
    pickled = cloudpickle.dumps(plan)
    done = subprocess.run([sys.executable, "-c", WITHOUT_TAILRACE], input=pickled, capture_output=True, check=False)
    last = done.stderr.decode().splitlines()[-1]
    assert last.startswith(f"ModuleNotFoundError: the Python of this Spark worker ({sys.executable} on "), last
    assert "has no Tailrace" in last
    assert "PYSPARK_DRIVER_PYTHON" in last
    assert "tailrace doctor --spark" in last


@pytest.mark.parametrize("plan", PLANS, ids=lambda plan: type(plan).__name__)
def test_a_worker_with_tailrace_has_the_plan(plan: object) -> None:
    made = cloudpickle.loads(cloudpickle.dumps(plan))
    assert type(made) is type(plan)
    assert vars(made).keys() == vars(plan).keys()


def test_a_reader_of_a_users_own_class_is_pickled_too() -> None:
    """A class such as a notebook's, which no worker could import."""

    class Counted(TailraceReader):
        count = 3

    made = pickle.loads(cloudpickle.dumps(Counted(ROW, SOURCE)))
    assert (made.count, made.options) == (3, SOURCE)
