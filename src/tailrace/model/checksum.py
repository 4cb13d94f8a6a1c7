"""CRC-32C, the checksum of record batches: `crc32c(data, value=0)` of any buffer, without a copy.

The package crc32c imports the readers of package metadata and of mail for its version, and argparse for its command:
2 MB and 20 ms of each process that starts. So its extension module is loaded without the package around it, from the
place where the package is.
"""

from collections.abc import Callable
from importlib.machinery import PathFinder
from importlib.util import find_spec, module_from_spec
from typing import Any


def _load() -> Callable[..., int]:
    package = find_spec("crc32c")
    places = None if package is None else package.submodule_search_locations
    found = PathFinder.find_spec("_crc32c", places) if places else None
    if found is None or found.loader is None:  # another release has another layout
        from crc32c import crc32c as whole

        function: Callable[..., int] = whole
    else:
        extension: Any = module_from_spec(found)
        found.loader.exec_module(extension)
        function = extension.crc32c
    return function


crc32c = _load()
