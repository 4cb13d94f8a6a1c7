"""The Python process of Spark's that runs tasks, one after the other, with a Python of its own."""

import gc
import platform
import sys
from functools import cache

from pyspark import TaskContext

from tailrace.model import __version__
from tailrace.model.errors import ErrorCode, KafkaError


def begin_task(drivers_version: str) -> None:
    """Make this process ready for a task of the driver's.

    Raises KafkaError(UNSUPPORTED_VERSION) if its version of Tailrace is not the driver's, which pickles its plans to
    workers: another version could read them wrongly.
    """
    if drivers_version != __version__:
        raise KafkaError(
            ErrorCode.UNSUPPORTED_VERSION,
            f"the driver has Tailrace {drivers_version} and this worker ({sys.executable} on {platform.node()})"
            f" {__version__}: install one version in the Python of both",
        )
    if TaskContext.get() is not None:
        _keep_modules_out_of_collections()


@cache
def _keep_modules_out_of_collections() -> None:
    """PySpark's daemon collects all garbage behind each task: 12 to 20 ms of CPU for the objects of loaded modules.

    Once per process, when its first task of ours begins. The garbage of earlier tasks is collected by then.
    """
    gc.freeze()
