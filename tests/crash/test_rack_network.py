"""The network of racks: what is cut loses packets without a word, and the rest goes on."""

import subprocess
import sys
from collections.abc import Iterator

import pytest

from crash.rack_network import NoNetwork, RackNetwork

_ECHO = "import socket; s = socket.create_server(('0.0.0.0', 7)); print(flush=True)\nwhile True: s.accept()[0].close()"
_CONNECT = "import socket, sys; socket.create_connection((sys.argv[1], 7), timeout=3.0).close()"


@pytest.fixture
def network() -> Iterator[RackNetwork]:
    try:
        network = RackNetwork(3)
    except NoNetwork as why:
        pytest.skip(f"no namespaces of the network: {why}")
    with network:
        servers = []
        try:
            for rack in network.racks:
                command = network.command(rack, [sys.executable, "-c", _ECHO])
                servers.append(subprocess.Popen(command, stdout=subprocess.PIPE))
                assert servers[-1].stdout is not None
                servers[-1].stdout.readline()
            yield network
        finally:
            for server in servers:
                server.kill()
                server.communicate()


def ways(network: RackNetwork) -> set[tuple[int | None, int]]:
    """The pairs of which the first connects to the second; None is this machine."""
    programs = {}
    for target in network.racks:
        command = [sys.executable, "-c", _CONNECT, network.address(target)]
        for source in (None, *network.racks):
            words = command if source is None else network.command(source, command)
            programs[source, target] = subprocess.Popen(words, stderr=subprocess.DEVNULL)
    return {way for way, program in programs.items() if program.wait() == 0}


@pytest.mark.crash
def test_cut_ways_lose_packets_and_others_do_not(network: RackNetwork) -> None:
    every_way = ways(network)
    assert len(every_way) == 12
    network.cut(1, [2])
    network.unplug(3)
    assert every_way - ways(network) == {(1, 2), (2, 1), (None, 3), (1, 3), (2, 3), (3, 1), (3, 2)}
    network.heal()
    assert ways(network) == every_way
