"""The advice of `tailrace doctor --spark` for each executor."""

import re
from dataclasses import replace

import pytest

from tailrace.spark.survey.executor_survey import Surveyed, advice, tasks_fail
from testkit.programs.surveys import DRIVER

EXECUTOR = replace(DRIVER, where="vm:app-1/0", tasks=8, rack="a")


def test_an_executor_like_the_driver_needs_no_change() -> None:
    assert list(advice(EXECUTOR, DRIVER, rack_variable="RACK")) == []
    assert list(advice(replace(EXECUTOR, pyarrow="26.3.0", rack=""), DRIVER)) == []


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (
            {"tailrace": "", "kernel": ""},
            "no Tailrace: Spark runs data sources, on executors too, with the Python of the",
        ),
        ({"tailrace": "0.0.9"}, "it has Tailrace 0.0.9 and the driver 0.1.0: tasks will be refused"),
        ({"kernel": "python"}, "install a C compiler there"),
        ({"pyarrow": "18.0.0"}, "it has pyarrow 18.0.0 and the driver 26.0.1: tasks will run"),
        ({"pyarrow": ""}, r"^its Python has no pyarrow, and tasks will fail: pip install 'tailrace\[arrow\]' in it$"),
        ({"rack": ""}, "it has no RACK and reads from the leaders: .* spark.executorEnv.RACK"),
        ({"unreached": ("10.0.0.7:9092",)}, "cannot connect to 10.0.0.7:9092, which a broker advertises"),
    ],
)
def test_an_executor_that_differs_has_advice(changes: dict[str, object], words: str) -> None:
    (change,) = advice(replace(EXECUTOR, **changes), DRIVER, rack_variable="RACK")  # type: ignore[arg-type]
    assert re.search(words, change)


@pytest.mark.parametrize(
    "executor",
    [
        replace(EXECUTOR, tailrace=""),
        replace(EXECUTOR, tailrace="0.0.9"),
        replace(EXECUTOR, pyarrow=""),
        replace(EXECUTOR, unreached=("10.0.0.7:9092",)),
    ],
)
def test_tasks_fail_without_what_they_need(executor: Surveyed) -> None:
    assert tasks_fail(executor, DRIVER)


def test_tasks_run_with_another_pyarrow_without_a_rack_and_slowly() -> None:
    assert not tasks_fail(EXECUTOR, DRIVER)
    assert not tasks_fail(replace(EXECUTOR, pyarrow="18.0.0", rack="", kernel="python"), DRIVER)


def test_a_driver_without_tailrace_or_pyarrow_has_advice_of_its_own() -> None:
    bare = replace(DRIVER, tailrace="", pyarrow="", kernel="")
    assert tasks_fail(bare, bare)
    assert [change.partition(":")[0] for change in advice(bare, bare)] == [
        "its Python has no Tailrace",
        "its Python has no pyarrow, and tasks will fail",
    ]
    assert list(advice(EXECUTOR, bare)) == [
        "it has Tailrace 0.1.0 and the driver none: tasks will be refused; install one version"
    ]
