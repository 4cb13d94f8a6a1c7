"""The Python processes of Spark's that run tasks, or calls of a data source, one after the other."""

import gc
import platform
import sys
import traceback
from collections.abc import Callable
from functools import cache
from typing import Any

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
        end_quietly_without_socket()
        _keep_modules_out_of_collections()


@cache
def _keep_modules_out_of_collections() -> None:
    """PySpark's daemon collects all garbage behind each task: 12 to 20 ms of CPU for the objects of loaded modules.

    Once per process, when its first task of ours begins. The garbage of earlier tasks is collected by then.
    """
    gc.freeze()


@cache
def end_quietly_without_socket() -> None:
    """Let a process of PySpark's daemon end without a traceback if Spark has closed its socket.

    Spark closes the socket of a process that has had no call for a minute. The process takes the end for a fault, which
    it reports to the socket: by TCP in vain, by a Unix socket with a BrokenPipeError, for which the daemon prints a
    traceback. A fault of a call goes to Spark as an answer, and Spark shows it.
    """
    if getattr(sys.modules["__main__"].__spec__, "name", None) == "pyspark.daemon":
        traceback.print_exc = unless_socket_is_closed(traceback.print_exc)


def unless_socket_is_closed(print_exc: Callable[..., None]) -> Callable[..., None]:
    """The function, which prints nothing of an exception by which a process learns that its socket is closed."""

    def quiet(*arguments: Any, **named: Any) -> None:
        if not isinstance(sys.exception(), ConnectionError):
            print_exc(*arguments, **named)

    return quiet
