"""A cluster of which each broker stands in a rack of a `RackNetwork`; where there can be none, on one address."""

import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import IO, Any

from crash.rack_network import RackNetwork
from tailrace.node.local.cluster import LocalNode
from tailrace.testing import Cluster
from tailrace.testing import cluster as cluster_module

_LOOPBACK = "127.0.0.1"
_STARTER_NAME = "start_process"


class RackedCluster(Cluster):
    """Broker N is in rack N: in its namespace, if there is a network."""

    def __init__(self, network: RackNetwork | None, racks: Sequence[str], **arguments: Any) -> None:
        super().__init__(len(racks), racks=racks, **arguments)
        self._network = network

    def _take(self, node: LocalNode) -> None:
        if self._network is not None:
            node = replace(node, settings=self._moved(node))
            node.write()
        super()._take(node)

    def _moved(self, node: LocalNode) -> Mapping[str, str]:
        assert self._network is not None
        voters = node.settings["controller.quorum.voters"]
        for rack in self._network.racks:
            voters = voters.replace(f"{rack}@{_LOOPBACK}", f"{rack}@{self._network.address(rack)}")
        return {
            **node.settings,
            "listeners": node.settings["listeners"].replace(_LOOPBACK, self._network.address(node.node_id)),
            "controller.quorum.voters": voters,
            "listener.insecure.allow": "true",
        }


@contextmanager
def nodes_in(network: RackNetwork | None) -> Iterator[None]:
    """Have the nodes of clusters start in their racks."""
    before: Callable[..., Any] = getattr(cluster_module, _STARTER_NAME)

    def start(command: Sequence[str], environment: Mapping[str, str], stderr: IO[bytes]) -> Any:
        assert network is not None
        node = int(Path(command[-1]).parent.name.removeprefix("node-"))
        return subprocess.Popen(
            network.command(node, command),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=stderr,
            start_new_session=True,
            env=environment,
        )

    if network is not None:
        setattr(cluster_module, _STARTER_NAME, start)
    try:
        yield
    finally:
        setattr(cluster_module, _STARTER_NAME, before)
