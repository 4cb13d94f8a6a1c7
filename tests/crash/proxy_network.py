"""A network of racks without namespaces: every node advertises proxies in place of its listeners.

A proxy finds out the rack at the other end of a connection: the process there has it in its environment. A cut is
silent: connections stay open, are even accepted, and bytes wait until it is over.
"""

import asyncio
import os
import threading
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Final

from crash.rack_network import NoNetwork
from tailrace.node.local.cluster import LocalNode
from tailrace.node.settings.listeners import parse_endpoint

_RACK: Final = "RACK_OF_TEST"
_HOST: Final = "127.0.0.1"
_VOTERS: Final = "controller.quorum.voters"
_CHUNK_BYTES: Final = 1 << 16
_MACHINE: Final = 0
"""The number of this machine, and of every process that is in no rack."""
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
            source = self._racks_of_processes.of_peer(
                writer.get_extra_info("peername")[1], writer.get_extra_info("sockname")[1]
            )
            to_target, to_source = self._ways[source, target], self._ways[target, source]
            await asyncio.gather(to_target.wait(), to_source.wait())  # a connection takes packets both ways
            their_reader, their_writer = await asyncio.open_connection(_HOST, self._targets[place])
            writers.append(their_writer)
            async with asyncio.TaskGroup() as pumps:
                pumps.create_task(_pump(reader, their_writer, to_target))
                pumps.create_task(_pump(their_reader, writer, to_source))
        except* (OSError, _Ended, asyncio.CancelledError):
            pass
        finally:
            for each in writers:
                each.close()
            self._tasks.discard(task)


class _Ended(Exception):
    """One side has closed the connection."""


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, way: asyncio.Event) -> None:
    while data := await reader.read(_CHUNK_BYTES):
        await way.wait()
        writer.write(data)
        await writer.drain()
    await way.wait()  # the end of a connection is a packet too
    raise _Ended


class RacksOfProcesses:
    """The rack of each process, by its environment."""

    def __init__(self) -> None:
        self._racks: dict[str, int] = {}
        """By the number of the process."""

    def of_peer(self, port: int, proxy_port: int) -> int:
        """The rack of the process that has connected from this port; `_MACHINE` if it is in none."""
        inode = _inode(port, proxy_port)
        running = {name for name in os.listdir("/proc") if name.isdecimal()}
        self._racks = {name: rack for name, rack in self._racks.items() if name in running}
        for process in running - self._racks.keys():
            rack = _rack_of(process)
            if rack != _MACHINE:  # another program may still take the place of one that is in no rack
                self._racks[process] = rack
        return next((rack for process, rack in self._racks.items() if _has_socket(process, inode)), _MACHINE)


def _has_socket(process: str, inode: str | None) -> bool:
    directory = f"/proc/{process}/fd"
    try:
        return any(os.readlink(f"{directory}/{name}") == f"socket:[{inode}]" for name in os.listdir(directory))
    except OSError:  # it has ended, or has just closed a file
        return False


def _inode(port: int, proxy_port: int) -> str | None:
    ends = f":{port:04X}", f":{proxy_port:04X}"
    for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        words = line.split()
        if words[1].endswith(ends[0]) and words[2].endswith(ends[1]):
            return words[9]
    return None


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
