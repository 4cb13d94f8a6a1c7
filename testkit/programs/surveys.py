"""The findings of `tailrace doctor --spark` on a driver that lacks nothing."""

from typing import Final

from tailrace.spark.survey.executor_survey import Surveyed

DRIVER: Final = Surveyed(
    where="driver",
    tasks=0,
    python="/env/bin/python 3.11.7",
    tailrace="0.1.0",
    pyarrow="26.0.1",
    kernel="C",
    rack="",
    unreached=(),
)
