"""A cluster of which each broker stands in a rack of a `RackNetwork`; without a network, on one address."""

import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import IO, Any

from crash.networks.rack_network import RackNetwork
from tailrace.node.local.cluster import LocalNode
from tailrace.testing import Cluster, node_process

_STARTER_NAME = "start_process"


class RackedCluster(Cluster):
    """Broker N is in rack N."""

    def __init__(self, network: RackNetwork | None, racks: Sequence[str], **arguments: Any) -> None:
        super().__init__(len(racks), racks=racks, **arguments)
        self._network = network

    def _take(self, node: LocalNode) -> None:
        if self._network is not None:
            node = replace(node, settings=self._network.settings_of(node))
            node.write()
        super()._take(node)


@contextmanager
def nodes_in(network: RackNetwork | None) -> Iterator[None]:
    """Have the nodes of clusters start in their racks, as processes of their own.

    A fork (`node_starter`) would have the command line of another process, and code that breaks disks looks there.
    """
    before: Callable[..., Any] = getattr(node_process, _STARTER_NAME)

    def start(command: Sequence[str], environment: Mapping[str, str], stderr: IO[bytes]) -> Any:
        node = int(Path(command[-1]).parent.name.removeprefix("node-"))
        return subprocess.Popen(
            command if network is None else network.command(node, command),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=stderr,
            start_new_session=True,
            env=environment,
        )

    setattr(node_process, _STARTER_NAME, start)
    try:
        yield
    finally:
        setattr(node_process, _STARTER_NAME, before)
