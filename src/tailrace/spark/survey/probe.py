"""A probe of the running Python: what a task of a Tailrace source would find there.

Spark pickles the probe to executors by value, and the driver's Python gets its text (see `survey_job`): the probe must
work, and say so, where neither Tailrace nor pyarrow is installed. The probe imports either package only to look for its
presence.
"""

import json
import os
import platform
import socket
import sys
import time
from collections.abc import Iterable
from typing import Any

CONNECT_TIMEOUT_S = 3.0
PAUSE_S = 0.3
"""The pause of each task, so that the tasks reach all executors instead of the first executor that is ready."""


def probe_in_task(_number: int, *, addresses: Iterable[str], rack_variable: str) -> tuple[str, ...]:
    """The facts of the executor that runs this task."""
    time.sleep(PAUSE_S)
    return facts(addresses, rack_variable)


def facts(addresses: Iterable[str] = (), rack_variable: str = "") -> tuple[str, ...]:
    """Place, interpreter, version of Tailrace, of pyarrow, kernel, rack and the addresses not reached, all as texts.

    A missing fact is empty.
    """
    return (
        f"{platform.node()}:{'/'.join(os.getcwd().split('/')[-2:])}",  # a worker runs in its executor's directory
        f"{sys.executable} {platform.python_version()}",
        _version_of_tailrace(),
        _version_of("pyarrow"),
        _kernel(),
        os.environ.get(rack_variable, "") if rack_variable else "",
        ",".join(address for address in addresses if not is_reached(address)),
    )


def _version_of_tailrace() -> str:
    try:
        from tailrace.model import __version__
    except ImportError:
        return ""
    return __version__


def _version_of(package: str) -> str:
    try:
        module: Any = __import__(package)
    except ImportError:
        return ""
    return str(module.__version__)


def _kernel() -> str:
    try:
        from tailrace.protocol.records.kernels import KERNEL
    except ImportError:
        return ""
    return KERNEL


def is_reached(address: str) -> bool:
    """Whether a connection to HOST:PORT opens, in three seconds at most."""
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=CONNECT_TIMEOUT_S).close()
    except OSError:
        return False
    return True


if __name__ == "__main__":
    sys.stdout.write(json.dumps(facts()))
