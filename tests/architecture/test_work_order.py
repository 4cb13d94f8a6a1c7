"""The list of long files is of this repository, and it decides which tests begin first."""

from pathlib import Path

import work_order
from compiled import shares

ROOT = Path(__file__).parents[2]


class Item:
    """A test, of which nothing but its id is looked at."""

    def __init__(self, nodeid: str) -> None:
        self.nodeid = nodeid


def test_every_long_file_exists_and_stands_there_once() -> None:
    listed = work_order.long_files()
    assert listed
    assert len(set(listed)) == len(listed)
    assert [name for name in listed if not (ROOT / name).exists()] == []
    assert [name for name in listed if (ROOT / name).is_dir()] == list(work_order.SHARED)


def test_long_files_begin_first_and_the_others_keep_their_order() -> None:
    first, second, *_ = (name for name in work_order.long_files() if name.endswith(".py"))
    ids = ["tests/b.py::one", f"{second}::two", "tests/a.py::three", "tests/spark/test_sink.py::four", f"{first}::five"]
    items = [Item(nodeid) for nodeid in ids]
    work_order.put_long_files_first(items)  # type: ignore[arg-type]
    assert [item.nodeid.partition("::")[2] for item in items] == ["four", "five", "two", "one", "three"]


def test_one_worker_runs_a_file_and_one_all_that_share_a_session() -> None:
    assert work_order.unit("tests/unit/model/test_machines.py::A::test_b[c::d]") == "tests/unit/model/test_machines.py"
    assert work_order.unit("tests/spark/test_sink.py::test_a") == work_order.unit("tests/spark/test_outages.py::test_b")
    assert {work_order.unit(f"{file}::test_spark") for file in work_order.WITH_SPARK} == {"tests/spark"}
    assert work_order.unit("tests/spark/connector/test_a.py::test_b") == "tests/spark/connector"
    assert [work_order.unit(f"{file}::test_spark") for file in work_order.ALONE] == list(work_order.ALONE)
    assert [file for file in (*work_order.WITH_SPARK, *work_order.ALONE) if not (ROOT / file).exists()] == []


def test_tests_are_compiled_in_shares_of_about_the_same_size() -> None:
    assert shares([(5, "a"), (1, "b"), (4, "c"), (3, "d")], 2) == [["a", "b"], ["c", "d"]]
    assert shares([(5, "a")], 2) == [["a"]]
