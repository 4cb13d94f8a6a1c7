"""A node as a process of its own: event loop, signals, logging, the ready line and the exit code."""

import asyncio
import gc
import logging
import os
import resource
import signal
import sys
from collections.abc import Callable

from tailrace.node.config import NodeConfig
from tailrace.node.node import Node

_logger = logging.getLogger("tailrace.node")

_FAILED = 1
_LOG_FORMAT = "%(asctime)s %(levelname)s %(name)s %(message)s"
_MOST_OPEN_FILES = 65_536
_GC_THRESHOLDS = (50_000, 50, 100)
"""Requests make no reference cycles: collecting every 700 allocations would find nothing, all day."""


def run(config: NodeConfig) -> int:
    """Run a node until SIGTERM or SIGINT; the exit code. Raises KafkaError or OSError if it cannot start."""
    logging.basicConfig(level=logging.INFO, stream=sys.stderr, format=_LOG_FORMAT)
    max_open_files = _raise_file_limit()
    with asyncio.Runner(loop_factory=event_loop_factory()) as runner:
        return runner.run(_serve(config, max_open_files))


def event_loop_factory() -> Callable[[], asyncio.AbstractEventLoop]:
    """uvloop's event loop where it is installed, else the standard one."""
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop
    factory: Callable[[], asyncio.AbstractEventLoop] = uvloop.new_event_loop
    return factory


async def _serve(config: NodeConfig, max_open_files: int) -> int:
    stopped = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopped.set)
    node = Node(config, on_fatal=stop_at_once, max_open_files=max_open_files)
    await node.start()
    gc.collect()
    gc.freeze()
    gc.set_threshold(*_GC_THRESHOLDS)
    _say_ready(node, config)
    await stopped.wait()
    await node.stop()
    return 0


def _say_ready(node: Node, config: NodeConfig) -> None:
    addresses = ",".join(f"{endpoint.host}:{endpoint.port}" for endpoint in node.advertised)
    print(f"tailrace ready: {addresses}{' dev' if config.is_dev else ''}", flush=True)  # noqa: T201 - scripts wait for it


def stop_at_once(fault: BaseException) -> None:
    """End the process and close nothing: a broken invariant or a failed disk must not be written down as clean."""
    _logger.critical("event=node-failed action=stop", exc_info=fault)
    logging.shutdown()
    os._exit(_FAILED)


def _raise_file_limit() -> int:
    """Ask for as many descriptors as the system allows; returns how many of them files may have, sockets the rest."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
            soft = hard
        except (ValueError, OSError):
            _logger.info("event=file-limit-kept limit=%d", soft)
    return min(max(64, soft // 2), _MOST_OPEN_FILES)
