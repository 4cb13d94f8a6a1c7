"""Orders to bad disks: `bad_disk/sitecustomize.py` runs in each node that is started while the environment says so."""

import os
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Final
from unittest import mock

_CODE: Final = Path(__file__).with_name("bad_disk")


def environment_of(orders: Path, directory: Path, *import_path: str) -> dict[str, str]:
    """The disk below `directory` obeys the files in `orders`, a directory that is made."""
    orders.mkdir()
    path = os.pathsep.join([str(_CODE), *import_path])
    return {"PYTHONPATH": path, "BAD_DISK": str(orders), "BAD_DISK_OF": str(directory)}


def obeying(orders: Path, directory: Path) -> AbstractContextManager[object]:
    """The disks of nodes that are started in the block obey the orders."""
    return mock.patch.dict(os.environ, environment_of(orders, directory))
