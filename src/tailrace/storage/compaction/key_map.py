"""Which offset is the last of each key, in bounded memory.

Kafka's map holds 16-byte digests. Here a short key stands for itself and a long one for its 32-byte BLAKE2b digest, so
that no producer can make up two keys that count as one. The lengths keep the two kinds apart.
"""

from hashlib import blake2b
from typing import Final

DIGEST_BYTES: Final = 32
_ENTRY_BYTES: Final = 180
"""A dictionary's slot, the bytes object and the number, about; measured on CPython 3.11."""


class KeyMap:
    """Key -> the last offset that was put for it."""

    __slots__ = ("_offsets", "_room_bytes")

    def __init__(self, memory_bytes: int) -> None:
        self._offsets: dict[bytes, int] = {}
        self._room_bytes = memory_bytes

    def __len__(self) -> int:
        return len(self._offsets)

    @property
    def is_full(self) -> bool:
        """Whether the memory is used up. One more batch still fits: somebody must get through."""
        return self._room_bytes <= 0

    def put(self, key: bytes, offset: int) -> None:
        """Note that the key occurs at this offset; the largest one counts."""
        name = name_of(key)
        known = self._offsets.get(name)
        if known is None:
            self._room_bytes -= _ENTRY_BYTES + len(name)
        elif known >= offset:
            return
        self._offsets[name] = offset

    def last_offset(self, key: bytes) -> int:
        """The last offset of this key, -1 if it was never put."""
        return self._offsets.get(name_of(key), -1)


def name_of(key: bytes) -> bytes:
    """What the map holds for a key."""
    return key if len(key) < DIGEST_BYTES else blake2b(key, digest_size=DIGEST_BYTES).digest()
