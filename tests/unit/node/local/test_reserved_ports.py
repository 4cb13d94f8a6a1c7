"""Ports that wait for nodes which do not run yet."""

import socket

import pytest

from tailrace.node.local.reserved_ports import ReservedPorts


def listening(port: int, host: str = "127.0.0.1") -> socket.socket:
    """A server as a node makes it."""
    server = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    server.bind((host, port))
    server.listen()
    return server


def test_free_ports_are_all_different_and_not_given_out_by_chance() -> None:
    with ReservedPorts() as ports:
        taken = {ports.reserve("127.0.0.1", 0) for _ in range(50)}
        assert len(taken) == 50
        for _ in range(200):
            with socket.create_server(("127.0.0.1", 0)) as other:
                assert other.getsockname()[1] not in taken


def test_a_node_listens_on_a_reserved_port_and_again_after_its_death() -> None:
    with ReservedPorts() as ports:
        port = ports.reserve("127.0.0.1", 0)
        for host in ("127.0.0.1", "::1"):
            for _ in range(2):
                with listening(port, host), socket.create_connection((host, port)):
                    pass


def test_a_program_that_does_not_share_is_refused() -> None:
    with ReservedPorts() as ports:
        port = ports.reserve("127.0.0.1", 0)
        with socket.socket() as stranger, pytest.raises(OSError, match="in use"):
            stranger.bind(("127.0.0.1", port))


def test_a_port_in_use_is_refused_by_its_number() -> None:
    with ReservedPorts() as ports, listening(0) as other:
        port = other.getsockname()[1]
        with pytest.raises(OSError, match=f"cannot listen on 127.0.0.1:{port}.*choose other ports"):
            ports.reserve("127.0.0.1", port)
    with ReservedPorts() as ports, ReservedPorts() as holding:
        port = holding.reserve("127.0.0.1", 0)  # no other process listens on it at 127.0.0.1
        with listening(port, "::1"), pytest.raises(OSError, match=f"cannot listen on ::1:{port}"):
            ports.reserve("127.0.0.1", port)


def test_a_reserved_port_is_free_afterwards() -> None:
    with ReservedPorts() as ports:
        port = ports.reserve("127.0.0.1", 0)
    with socket.socket() as stranger:
        stranger.bind(("127.0.0.1", port))
