"""Bindings: which parts of running nodes hold which, as `node` has connected them and no import shows."""

import asyncio
import gc
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Mapping
from contextlib import AsyncExitStack
from pathlib import Path
from types import BuiltinMethodType, FrameType, FunctionType, ModuleType
from typing import Any

import pytest

from tailrace.client.admin.admin import AsyncAdmin
from tailrace.client.admin.topics import NewTopic
from tailrace.client.consumer import AsyncConsumer
from tailrace.client.producer import AsyncProducer
from tailrace.model.errors import KafkaError
from tailrace.node.node import Node
from tailrace.node.settings.config import NodeConfig
from tailrace.server.context import RequestContext

Bindings = Mapping[type, set[type]]
"""By the class of an object: the classes of all objects that one of its instances holds."""
_STATIC = (type, ModuleType, FrameType)
TOPIC = "walked"


def _references(value: object) -> Iterable[object]:
    """Objects that an object holds itself: of a function its closure and defaults, not the globals of its module."""
    if isinstance(value, FunctionType):
        return (*(value.__closure__ or ()), *(value.__defaults__ or ()), *(value.__kwdefaults__ or {}).values())
    if isinstance(value, BuiltinMethodType):
        return (value.__self__,)
    return gc.get_referents(value)


def _is_part(value: object) -> bool:
    """Whether this is an object of the product; a container, a function or a foreign object only passes on."""
    return type(value).__module__.startswith("tailrace.")


def _is_private_to(part: object, value: object) -> bool:
    """Whether its class, such as `_Route` of `server.dispatch`, is a detail of the part's own module."""
    kind = type(value)
    return kind.__name__.startswith("_") and kind.__module__ == type(part).__module__


def bindings(*roots: object) -> Bindings:
    """Walk from these objects to all that they hold.

    A part holds another if attributes, containers, bound methods, partials and closures lead to it with no third part
    on the way. Event loops, which hold everything, lead nowhere.
    """
    held: defaultdict[type, set[type]] = defaultdict(set)
    seen = {id(root) for root in roots}
    parts = deque(roots)
    while parts:
        part = parts.popleft()
        for other in _held_by(part):
            held[type(part)].add(type(other))
            if id(other) not in seen:
                seen.add(id(other))
                parts.append(other)
    return held


def _held_by(part: object) -> Iterable[object]:
    seen, way = {id(part)}, [part]
    while way:
        for value in _references(way.pop()):
            if id(value) in seen or isinstance(value, (*_STATIC, asyncio.AbstractEventLoop)):
                continue
            seen.add(id(value))
            if _is_part(value):
                yield value
            if not _is_part(value) or _is_private_to(part, value):
                way.append(value)


def holds(found: Bindings, is_holder: Callable[[type], bool], classes: Iterable[type]) -> bool:
    """Whether any part that is a holder holds an instance of any of the classes."""
    wanted = tuple(classes)
    return any(issubclass(kind, wanted) for holder, kinds in found.items() if is_holder(holder) for kind in kinds)


async def _started(directory: Path, node_id: int, **settings: str) -> Node:
    config = {"node.id": str(node_id), "log.dirs": str(directory / str(node_id))}
    config |= {name.replace("_", "."): text for name, text in settings.items()}
    node = Node(NodeConfig(config), on_fatal=_fail)
    await node.start()
    return node


def _fail(fault: BaseException) -> None:
    raise fault


async def _use(servers: str) -> None:
    """A topic with copies, and a record in it; a coordinator of transactions."""
    async with AsyncAdmin(servers) as admin, AsyncProducer(servers) as producer:
        await admin.create_topics([NewTopic(name=TOPIC, partitions=1, replication_factor=2)])
        await producer.send(TOPIC, b"value")
        await producer.flush()
        with pytest.raises(KafkaError, match="TRANSACTIONAL_ID_NOT_FOUND"):
            await admin.describe_transaction("not-there")


async def built(directory: Path) -> Bindings:
    """The bindings of two nodes, on ports that were free, while a follower copies and a client waits."""
    async with AsyncExitStack() as stack:
        listeners = "PLAINTEXT://127.0.0.1:0,CONTROLLER://127.0.0.1:0"
        roles = {"process_roles": "broker,controller", "controller_listener_names": "CONTROLLER"}
        small = {"offsets_topic_num_partitions": "1", "transaction_state_log_num_partitions": "1"}
        first = await _started(directory, 1, listeners=listeners, **roles, **small)
        stack.push_async_callback(first.stop, with_cluster=True)
        servers, voter = _addresses(first)
        quorum = {"process_roles": "broker", "controller_quorum_bootstrap_servers": voter}
        second = await _started(directory, 2, listeners="127.0.0.1:0", **quorum)
        stack.push_async_callback(second.stop, with_cluster=True)
        await _use(servers)
        settings: dict[str, Any] = {"group": "walkers", "auto_offset_reset": "earliest", "fetch_max_wait_ms": 30_000}
        consumer = await stack.enter_async_context(AsyncConsumer(servers, topics=[TOPIC], **settings))
        while not await consumer.poll(1):
            pass
        waiting = asyncio.ensure_future(consumer.poll(60))
        found = await _walked_while_a_poll_waits(first, second)
        waiting.cancel()
        return found


async def _walked_while_a_poll_waits(*nodes: Node) -> Bindings:
    while RequestContext not in (found := bindings(*nodes)):  # noqa: ASYNC110 - it is the nodes' loop that has to go on
        await asyncio.sleep(0.01)
    return found


def _addresses(node: Node) -> list[str]:
    """Addresses of the node's listeners, in their order."""
    return ["{}:{}".format(*listener.addresses[0][:2]) for listener in node._listeners]
