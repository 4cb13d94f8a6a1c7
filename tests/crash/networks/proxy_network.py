"""A network of racks without namespaces: every node advertises proxies in place of its listeners.

A proxy finds out the rack at the other end of a connection: the process there has it in its environment. A cut is
silent: connections stay open, are even accepted, and bytes wait until it is over.
"""

import asyncio
import os
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

from crash.networks.rack_network import NoNetwork
from tailrace.node.local.cluster import LocalNode
from tailrace.node.settings.listeners import parse_endpoint

_RACK: Final = "RACK_OF_TEST"
_HOST: Final = "127.0.0.1"
_VOTERS: Final = "controller.quorum.voters"
_CHUNK_BYTES: Final = 1 << 16
_MACHINE: Final = 0
"""The number of this machine, and of every process that is in no rack."""
_LOOK_S: Final = 0.1
_Ports = tuple[int, int]
"""The port of the process that has connected, and that of the proxy."""
_YOUNG_S: Final = 10.0
_LISTENERS: Final = ("PLAINTEXT", "CONTROLLER")


class ProxyNetwork:
    """The proxies of all racks, on a thread of their own."""

    def __init__(self, racks: int) -> None:
        """Raises NoNetwork."""
        if not Path("/proc/net/tcp").exists():
            raise NoNetwork("a proxy finds the other end of a connection in /proc, which there is not")
        self._racks = range(1, racks + 1)
        self._ways = {
            (source, target): asyncio.Event()
            for source in (_MACHINE, *self._racks)
            for target in (_MACHINE, *self._racks)
        }
        """The ways that are open are set. Changed on the loop alone."""
        self._ports: dict[tuple[int, str], int] = {}
        self._targets: dict[tuple[int, str], int] = {}
        self._racks_of_processes = RacksOfProcesses()
        self._tasks: set[asyncio.Task[None]] = set()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        asyncio.run_coroutine_threadsafe(self._listen(), self._loop).result()
        self.heal()

    @property
    def racks(self) -> Sequence[int]:
        return self._racks

    def close(self) -> None:
        async def cancel() -> None:
            for server in self._servers:
                server.close()
            tasks = tuple(self._tasks)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await asyncio.sleep(0)  # the sockets are closed in the next turn of the loop

        asyncio.run_coroutine_threadsafe(cancel(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _listen(self) -> None:
        self._servers = []
        for rack in self._racks:
            for name in _LISTENERS:
                place = rack, name

                async def serve(
                    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, place: tuple[int, str] = place
                ) -> None:
                    await self._serve(place, reader, writer)

                server = await asyncio.start_server(serve, _HOST, 0)
                self._servers.append(server)
                self._ports[place] = server.sockets[0].getsockname()[1]

    def port(self, rack: int, listener: str = "PLAINTEXT") -> int:
        """The port of a proxy."""
        return self._ports[rack, listener]

    def set_target(self, rack: int, port: int, listener: str = "PLAINTEXT") -> None:
        """Set the port for which a proxy stands."""
        self._targets[rack, listener] = port

    def settings_of(self, node: LocalNode) -> Mapping[str, str]:
        advertised = []
        for text in node.settings["listeners"].split(","):
            endpoint = parse_endpoint(text)
            self.set_target(node.node_id, endpoint.port, endpoint.name)
            advertised.append(f"{endpoint.name}://{_HOST}:{self.port(node.node_id, endpoint.name)}")
        voters = [f"{rack}@{_HOST}:{self.port(rack, 'CONTROLLER')}" for rack in self._racks]
        return {**node.settings, "advertised.listeners": ",".join(advertised), _VOTERS: ",".join(voters)}

    def command(self, rack: int, command: Sequence[str]) -> list[str]:
        return ["env", f"{_RACK}={rack}", *command]

    # faults

    def cut(self, rack: int, others: Iterable[int] | None = None) -> None:
        cut_off = [other for other in (self._racks if others is None else others) if other != rack]
        self._close_ways([(rack, other) for other in cut_off] + [(other, rack) for other in cut_off])

    def cut_one_way(self, rack: int) -> None:
        self._close_ways([(rack, other) for other in self._racks if other != rack])

    def unplug(self, rack: int) -> None:
        self.cut(rack, (_MACHINE, *self._racks))

    def heal(self) -> None:
        def open_ways() -> None:
            for way in self._ways.values():
                way.set()

        self._loop.call_soon_threadsafe(open_ways)

    def _close_ways(self, ways: Iterable[tuple[int, int]]) -> None:
        def close_ways() -> None:
            for way in ways:
                self._ways[way].clear()

        self._loop.call_soon_threadsafe(close_ways)

    # connections

    async def _serve(self, place: tuple[int, str], reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        target, _ = place
        writers = [writer]
        try:
            ports = writer.get_extra_info("peername")[1], writer.get_extra_info("sockname")[1]
            source = await self._racks_of_processes.of_peer(ports)
            to_target, to_source = self._ways[source, target], self._ways[target, source]
            early = await _until_open(reader, to_target, to_source)
            their_reader, their_writer = await asyncio.open_connection(_HOST, self._targets[place])
            writers.append(their_writer)
            their_writer.write(early)
            async with asyncio.TaskGroup() as pumps:
                pumps.create_task(_pump(reader, their_writer, to_target))
                pumps.create_task(_pump(their_reader, writer, to_source))
        except* (OSError, _Ended, asyncio.CancelledError):
            pass
        finally:
            for each in writers:
                each.transport.abort()
            self._tasks.discard(task)


class _Ended(Exception):
    """A side has closed the connection."""


async def _until_open(reader: asyncio.StreamReader, *ways: asyncio.Event) -> bytes:
    """Wait until all these ways are open; what has come meanwhile. Raises _Ended if the other end has given up."""
    early = b""
    while not all(way.is_set() for way in ways):
        with suppress(TimeoutError):
            async with asyncio.timeout(_LOOK_S):
                data = await reader.read(_CHUNK_BYTES)
                if not data:
                    raise _Ended
                early += data
    return early


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, way: asyncio.Event) -> None:
    while data := await reader.read(_CHUNK_BYTES):
        await way.wait()
        writer.write(data)
        await writer.drain()
    await way.wait()  # the end of a connection is a packet too
    raise _Ended


class RacksOfProcesses:
    """The racks of the processes that have connected, by their environments.

    One look into /proc serves all connections that wait for it: on a busy machine it takes longer than the time between
    two of them.
    """

    def __init__(self) -> None:
        self._racks: dict[str, int] = {}
        """By the number of the process."""
        self._seen_s: dict[str, float] = {}
        """The time at which each running process was seen first."""
        self._waiting: list[tuple[_Ports, asyncio.Future[int]]] = []
        self._look: asyncio.Task[None] | None = None

    async def of_peer(self, ports: _Ports) -> int:
        """The rack of the process at the other end of a connection; `_MACHINE` if it is in none, or has gone."""
        future: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._waiting.append((ports, future))
        if self._look is None:
            self._look = asyncio.create_task(self._look_for_all())
        return await future

    async def _look_for_all(self) -> None:
        while self._waiting:
            waiting, self._waiting = self._waiting, []
            racks = await asyncio.to_thread(self._racks_of, [ports for ports, _ in waiting])
            for (_, future), rack in zip(waiting, racks, strict=True):
                if not future.done():
                    future.set_result(rack)
        self._look = None

    def _racks_of(self, connections: Sequence[_Ports]) -> list[int]:
        inodes = _inodes()
        self._find_processes()
        by_socket = {socket: rack for process, rack in self._racks.items() for socket in _sockets(process)}
        return [by_socket.get(f"socket:[{inodes.get(ports)}]", _MACHINE) for ports in connections]

    def _find_processes(self) -> None:
        now_s = time.monotonic()
        running = [name for name in os.listdir("/proc") if name.isdecimal()]
        self._seen_s = {process: self._seen_s.get(process, now_s) for process in running}
        self._racks = {process: rack for process, rack in self._racks.items() if process in self._seen_s}
        for process, seen_s in self._seen_s.items():
            # Another program, with another environment, may still take the place of a process that has just begun.
            if process not in self._racks and now_s - seen_s < _YOUNG_S:
                rack = _rack_of(process)
                if rack != _MACHINE:
                    self._racks[process] = rack


def _sockets(process: str) -> list[str]:
    directory = f"/proc/{process}/fd"
    found: list[str] = []
    try:
        for name in os.listdir(directory):
            with suppress(OSError):  # it has just been closed
                found.append(os.readlink(f"{directory}/{name}"))
    except OSError:
        pass  # the process has ended
    return found


def _inodes() -> dict[_Ports, str]:
    """The sockets of this machine by their own port and that of the other end."""
    found: dict[_Ports, str] = {}
    for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        words = line.split()
        own, other = (int(words[column].rpartition(":")[2], 16) for column in (1, 2))
        found[own, other] = words[9]
    return found


def _rack_of(process: str) -> int:
    try:
        environment = Path(f"/proc/{process}/environ").read_bytes()
    except OSError:  # it has ended, or belongs to another user
        return _MACHINE
    for variable in environment.split(b"\0"):
        name, _, value = variable.partition(b"=")
        if name == _RACK.encode():
            return int(value)
    return _MACHINE
