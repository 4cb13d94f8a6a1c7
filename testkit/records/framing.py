"""A stream of frames, for a client that reads it. A frame is an int32 length, then so many bytes."""

from struct import Struct

from tailrace.model.errors import MalformedMessage
from tailrace.protocol.primitives import Buffer

LENGTH_BYTES = 4
"""The length prefix; it does not count itself."""

_LENGTH = Struct(">i")


def frame_length(data: Buffer, position: int, max_bytes: int) -> int:
    """The number of bytes that follow the length prefix at `position`.

    Raises MalformedMessage for a negative length or one above `max_bytes`. The first bytes of TLS or HTTP, from a
    client at the wrong port, read as an absurd length.
    """
    length: int = _LENGTH.unpack_from(data, position)[0]
    if not 0 <= length <= max_bytes:
        raise MalformedMessage(f"a frame of {length} bytes; allowed are 0 to {max_bytes}")
    return length


class FrameSplitter:
    """Cuts a stream into frames, however the bytes arrive. Each frame is a copy."""

    def __init__(self, max_bytes: int = 100 * 1024 * 1024) -> None:
        self._max_bytes = max_bytes
        self._buffered = bytearray()

    @property
    def buffered_bytes(self) -> int:
        """Bytes of a frame that is not complete yet."""
        return len(self._buffered)

    def feed(self, data: Buffer) -> list[bytes]:
        """Take the next bytes of the stream; return the frames that are complete now, without their length prefix."""
        self._buffered += data
        frames: list[bytes] = []
        position = 0
        with memoryview(self._buffered) as view:
            while len(view) - position >= LENGTH_BYTES:
                length = frame_length(view, position, self._max_bytes)
                stop = position + LENGTH_BYTES + length
                if stop > len(view):
                    break
                frames.append(bytes(view[position + LENGTH_BYTES : stop]))
                position = stop
        del self._buffered[:position]
        return frames
