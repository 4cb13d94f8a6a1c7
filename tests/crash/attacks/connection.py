"""Connections of attackers: an attacker is a client of one broker."""

import socket
import struct
from typing import Any, Final

from tailrace.protocol.headers import encode_request

DEADLINE_S: Final = 240


def connected(address: str) -> socket.socket:
    """A connection to this address of a broker, whose calls end at the deadline."""
    host, _, port = address.rpartition(":")
    return socket.create_connection((host, int(port)), timeout=DEADLINE_S)


def framed(request: Any, version: int) -> bytes:
    """The bytes of a request, with the size in front."""
    frame = b"".join(encode_request(request, version, 1, "attacker"))
    return struct.pack(">i", len(frame)) + frame
