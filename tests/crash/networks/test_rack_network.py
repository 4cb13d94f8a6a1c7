"""The networks of racks: what is cut loses bytes without a word, and the rest goes on."""

import subprocess
import sys
from collections.abc import Iterator

import pytest

from crash.networks.proxy_network import ProxyNetwork
from crash.networks.rack_network import NamespaceNetwork, NoNetwork, RackNetwork

_SERVER = """
import socket
server = socket.create_server(('0.0.0.0', 0))
print(server.getsockname()[1], flush=True)
while True:
    client = server.accept()[0]
    client.sendall(client.recv(1))
"""
_CLIENT = """
import socket, sys
client = socket.create_connection((sys.argv[1], int(sys.argv[2])), timeout=3.0)
client.sendall(b"?")
sys.exit(client.recv(1) != b"?")
"""
Way = tuple[int | None, int]
"""The first connects to the second and gets an answer; None is this machine."""


class EchoingRacks:
    """A server in each rack."""

    def __init__(self, network: RackNetwork) -> None:
        self.network = network
        self._servers: list[subprocess.Popen[bytes]] = []
        self._addresses: dict[int, tuple[str, int]] = {}
        for rack in network.racks:
            command = network.command(rack, [sys.executable, "-c", _SERVER])
            server = subprocess.Popen(command, stdout=subprocess.PIPE)
            self._servers.append(server)
            assert server.stdout is not None
            port = int(server.stdout.readline())
            if isinstance(network, ProxyNetwork):
                network.set_target(rack, port)
                self._addresses[rack] = "127.0.0.1", network.port(rack)
            else:
                assert isinstance(network, NamespaceNetwork)
                self._addresses[rack] = network.address(rack), port

    def close(self) -> None:
        for server in self._servers:
            server.kill()
            server.communicate()

    def ways(self) -> set[Way]:
        """The ways that are open."""
        programs: dict[Way, subprocess.Popen[bytes]] = {}
        for target, (host, port) in self._addresses.items():
            command = [sys.executable, "-c", _CLIENT, host, str(port)]
            for source in (None, *self.network.racks):
                words = command if source is None else self.network.command(source, command)
                programs[source, target] = subprocess.Popen(words, stderr=subprocess.DEVNULL)
        return {way for way, program in programs.items() if program.wait() == 0}


@pytest.fixture(params=[NamespaceNetwork, ProxyNetwork])
def racks(request: pytest.FixtureRequest) -> Iterator[EchoingRacks]:
    try:
        network = request.param(3)
    except NoNetwork as why:
        pytest.skip(f"no such network: {why}")
    try:
        racks = EchoingRacks(network)
        try:
            yield racks
        finally:
            racks.close()
    finally:
        network.close()


@pytest.mark.crash
def test_cut_ways_lose_bytes_and_others_do_not(racks: EchoingRacks) -> None:
    every_way = racks.ways()
    assert len(every_way) == 12
    racks.network.cut(1, [2])
    racks.network.unplug(3)
    assert every_way - racks.ways() == {(1, 2), (2, 1), (None, 3), (1, 3), (2, 3), (3, 1), (3, 2)}
    racks.network.heal()
    assert racks.ways() == every_way
    racks.network.cut_one_way(2)
    assert every_way - racks.ways() == {(1, 2), (3, 2), (2, 1), (2, 3)}, "an answer takes both ways"
