"""Writing to a transport that copies what it cannot send (asyncio before Python 3.12): no more than it sends soon."""

import asyncio
from collections.abc import Callable, Sequence
from typing import Final

Buffer = bytes | bytearray | memoryview

PORTION_BYTES: Final = 256 * 1024
"""The most that is handed over at once."""


def write_in_portions(
    transport: asyncio.Transport, chunks: Sequence[Buffer], is_blocked: Callable[[], bool]
) -> list[Buffer]:
    """Write these until the transport has enough; what is left then."""
    for index, chunk in enumerate(chunks):
        for position in range(0, len(chunk), PORTION_BYTES):
            if is_blocked():
                return [memoryview(chunk)[position:], *chunks[index + 1 :]]
            transport.write(memoryview(chunk)[position : position + PORTION_BYTES])
    return []
