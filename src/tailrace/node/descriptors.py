"""The shares of connections and of the files of logs in the file descriptors of the process.

Files are opened and closed as needed (`storage.OsFiles`), so a partition does not need a descriptor of its own; a
connection keeps its descriptor. When the descriptors that cannot be closed at will come near the limit, no further
topic is created.
"""

import logging
import os
import resource
from collections.abc import Callable
from typing import NamedTuple

from tailrace.metadata.commands import ControllerCommand, ControllerResponse, CreateTopics
from tailrace.metadata.image import ClusterImage
from tailrace.model.errors import ErrorCode, KafkaError
from tailrace.model.ids import BrokerId
from tailrace.node.settings.config import NodeConfig
from tailrace.server.ports import Controller

_logger = logging.getLogger("tailrace.node")

_LEAST = 128
_MOST_FILES = 65_536
_RESERVE = 48
"""Descriptors for listeners, event loop, locks, checkpoints that are being written, and files that libraries open."""
_NEAR_PERCENT = 80
_OPEN_DESCRIPTORS = "/proc/self/fd"


class DescriptorPlan(NamedTuple):
    """The shares of connections and files in the descriptors."""

    limit: int
    connections: int
    """The most connections of each listener."""
    files: int


def raise_limit() -> None:
    """Ask for as many descriptors as the system allows."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        except (ValueError, OSError):
            _logger.info("event=file-limit-kept limit=%d", soft)


def descriptor_limit() -> int:
    """The number of descriptors that this process may have open."""
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0]


def plan_descriptors(limit: int, *, max_connections: int, listeners: int = 1) -> DescriptorPlan:
    """A listener gets as many connections as the settings allow, all listeners together at most half of the
    descriptors; files get the rest.

    Raises KafkaError(INVALID_CONFIG) if there are too few descriptors to run a node.
    """
    if limit < _LEAST:
        raise KafkaError(
            ErrorCode.INVALID_CONFIG,
            f"this process may open {limit} files and connections; a node needs {_LEAST}, better 10,000:"
            " raise the limit (ulimit -n, or LimitNOFILE of a systemd unit)",
        )
    free = limit - _RESERVE
    connections = min(max_connections, free // 2 // listeners)
    if connections < max_connections:
        _logger.warning(
            "event=few-descriptors limit=%d max.connections=%d allowed=%d way-out='ulimit -n %d'",
            limit,
            max_connections,
            connections,
            2 * listeners * max_connections + _RESERVE,
        )
    return DescriptorPlan(limit, connections, min(free - connections * listeners, _MOST_FILES))


def plan_node_descriptors(config: NodeConfig, limit: int) -> DescriptorPlan:
    """The plan of `plan_descriptors` for the listeners of this node."""
    max_connections, listeners = config.integer("max.connections"), config.addresses.listeners
    return plan_descriptors(limit, max_connections=max_connections, listeners=len(listeners))


def count_open_descriptors() -> int:
    """The number of descriptors that this process has open now; 0 if the system does not tell."""
    try:
        return len(os.listdir(_OPEN_DESCRIPTORS))
    except OSError:
        return 0


class CarefulController:
    """A `server.ports.Controller` that creates no topic while most descriptors of this process are taken."""

    def __init__(
        self, controller: Controller, *, limit: int, reclaimable: Callable[[], int], count_open: Callable[[], int]
    ) -> None:
        """`reclaimable` returns the number of open descriptors that can be closed at any time."""
        self._controller = controller
        self._limit = limit
        self._reclaimable = reclaimable
        self._count_open = count_open

    @property
    def image(self) -> ClusterImage:
        return self._controller.image

    @property
    def leader_id(self) -> BrokerId:
        return self._controller.leader_id

    def submit(self, command: ControllerCommand, on_done: Callable[[ControllerResponse | KafkaError], None]) -> None:
        """Submit a command, see `server.ports.Controller.submit`. New topics beyond the limit of file descriptors are
        refused: POLICY_VIOLATION (44)."""
        if isinstance(command, CreateTopics):
            taken = self._count_open() - self._reclaimable()
            if taken * 100 >= self._limit * _NEAR_PERCENT:
                on_done(self._refusal(taken))
                return
        self._controller.submit(command, on_done)

    def _refusal(self, taken: int) -> KafkaError:
        return KafkaError(
            ErrorCode.POLICY_VIOLATION,
            f"{taken} of this node's {self._limit} file descriptors are taken; no topic is created above"
            f" {_NEAR_PERCENT} %: raise the limit (ulimit -n) or lower max.connections",
        )
