"""The kernels of this installation: the compiled kernels if they were built, else their twin in pure Python.

`KERNEL` says which, "C" or "python". TAILRACE_KERNEL=python in the environment forces the twin: for comparing both, and
as a way out if the compiled kernels ever misbehave.
"""

import os
from importlib import import_module


def _are_compiled() -> bool:
    """Whether the compiled kernels were built, can be loaded, and are wanted."""
    if os.environ.get("TAILRACE_KERNEL", "").lower() == "python":
        return False
    try:
        import_module("tailrace.protocol.records._kernels")
    except ImportError:
        return False
    return True


if not _are_compiled():  # a process loads one of both: each costs memory
    from tailrace.protocol.records._kernels_twin import (
        KERNEL,
        SteppedSplit,
        append_record,
        check_records,
        encode_columns,
        murmur2_column,
        murmur64_column,
        parse_records,
        records_to_columns,
        renumber_records,
        split_by_key,
        walk_batches,
    )
else:
    from tailrace.protocol.records._kernels import (  # type: ignore[no-redef]  # the same names, compiled
        KERNEL,
        SteppedSplit,
        append_record,
        check_records,
        encode_columns,
        murmur2_column,
        murmur64_column,
        parse_records,
        records_to_columns,
        renumber_records,
        split_by_key,
        walk_batches,
    )

__all__ = (
    "KERNEL",
    "SteppedSplit",
    "append_record",
    "check_records",
    "encode_columns",
    "murmur2_column",
    "murmur64_column",
    "parse_records",
    "records_to_columns",
    "renumber_records",
    "split_by_key",
    "walk_batches",
)
