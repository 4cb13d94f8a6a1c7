"""The power of a cluster's nodes: each keeps a copy of what it has synced, which takes the place of its data.

The copy is made by `crash/platter/sitecustomize.py`, in every node that is started while the environment says so.
"""

import os
import shutil
from collections.abc import Mapping
from pathlib import Path

from tailrace.testing import Cluster

_CODE = Path(__file__).with_name("platter")


class Power:
    """The files of all nodes of a cluster below one directory as after a power cut."""

    def __init__(self, cluster_directory: Path, place: Path) -> None:
        self._directory = cluster_directory
        self._place = place

    @property
    def environment(self) -> Mapping[str, str]:
        """With which the nodes must be started."""
        return {"PYTHONPATH": str(_CODE), "PLATTER": str(self._place), "PLATTER_OF": str(self._directory)}

    def cut(self, cluster: Cluster) -> None:
        """Kill all nodes at once, and leave of their data what they have synced."""
        cluster.kill()
        inodes = self._place / "inodes"
        shutil.rmtree(inodes, ignore_errors=True)
        inodes.mkdir(parents=True)
        for node in cluster.node_ids:
            data = cluster.data_dir(node)
            kept = self._place / "tree" / data.relative_to(self._directory)
            shutil.rmtree(data)
            kept.mkdir(parents=True, exist_ok=True)
            shutil.copytree(kept, data)
            for file in data.rglob("*"):
                if file.is_file():
                    os.link(kept / file.relative_to(data), inodes / str(file.stat().st_ino))
