"""The advice of `tailrace doctor --spark` for each executor."""

import re
from dataclasses import replace

import pytest

from tailrace.spark.executor_survey import Surveyed, _last_line, advice

DRIVER = Surveyed(
    where="driver",
    tasks=0,
    python="/env/bin/python 3.11.7",
    tailrace="0.1.0",
    pyarrow="26.0.1",
    kernel="C",
    rack="",
    unreached=(),
)
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
        ({"pyarrow": "18.0.0"}, "it has pyarrow 18.0.0 and the driver 26.0.1"),
        ({"rack": ""}, "it has no RACK and reads from the leaders: .* spark.executorEnv.RACK"),
        ({"unreached": ("10.0.0.7:9092",)}, "cannot connect to 10.0.0.7:9092, which a broker advertises"),
    ],
)
def test_an_executor_that_differs_has_advice(changes: dict[str, object], words: str) -> None:
    (change,) = advice(replace(EXECUTOR, **changes), DRIVER, rack_variable="RACK")  # type: ignore[arg-type]
    assert re.search(words, change)


def test_the_reason_of_a_failed_job_is_the_last_line_of_its_traceback() -> None:
    reason = "ModuleNotFoundError: No module named 'pyarrow'"
    assert (
        _last_line(f"Job aborted\nTraceback:\n  File x\n{reason}\n\n\tat org.apache.spark\nJVM stacktrace:") == reason
    )
    assert _last_line("no way") == "no way"
