"""The versions of Tailrace of a driver and of its workers, which have a Python of their own each."""

import platform
import sys

from tailrace.model import __version__
from tailrace.model.errors import ErrorCode, KafkaError


def check_worker(drivers: str) -> None:
    """Raise KafkaError(UNSUPPORTED_VERSION) in a worker whose version is not the driver's.

    The driver pickles its plans to workers, so that another version could read them wrongly.
    """
    if drivers != __version__:
        raise KafkaError(
            ErrorCode.UNSUPPORTED_VERSION,
            f"the driver has Tailrace {drivers} and this worker ({sys.executable} on {platform.node()}) {__version__}: "
            "install one version in the Python of both",
        )
