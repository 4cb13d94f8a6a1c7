"""Readers and writers on their way to Spark's workers. A worker may not have Tailrace: the task then fails with the way
out.

If a reader were pickled by the name of its class, such a worker would only report that there is no module of this name.
The function that makes the reader again is therefore pickled by value, and imports nothing of Tailrace.
"""

import pickle
import platform
import sys
from collections.abc import Callable
from typing import Any

from pyspark import cloudpickle

SOURCES_RUN = (
    "Spark runs data sources, on executors too, with the Python of the driver's PYSPARK_DRIVER_PYTHON, or, if that is "
    "not set, of its PYSPARK_PYTHON: that path must be a Python with Tailrace on every machine, or in spark.archives"
)


class PickledPlan:
    """The base class of readers and writers."""

    def __reduce__(self) -> tuple[Callable[[bytes], Any], tuple[bytes]]:
        # By cloudpickle, as Spark itself does: the class may be one of a user's, made in a notebook.
        return unpickled, (cloudpickle.dumps((type(self), self.__getstate__())),)


def unpickled(plan: bytes) -> Any:
    """The reader or writer. Raises ModuleNotFoundError, with the way out, in a Python without Tailrace."""
    try:
        kind, state = pickle.loads(plan)  # noqa: S301  # a part of what Spark itself has just unpickled
    except ModuleNotFoundError as missing:
        if missing.name is None or missing.name.partition(".")[0] != "tailrace":
            raise
        where = f"{sys.executable} on {platform.node()}"
        raise ModuleNotFoundError(
            f"the Python of this Spark worker ({where}) has no Tailrace: {SOURCES_RUN}; `tailrace doctor --spark "
            "--master URL` shows the machines that lack it",
            name=missing.name,
        ) from None
    made = kind.__new__(kind)
    made.__dict__.update(state)
    return made


cloudpickle.register_pickle_by_value(sys.modules[__name__])
