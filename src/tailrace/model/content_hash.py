"""A hash of 64 bits of any bytes, to compare contents: MurmurHash64A with a fixed seed.

Not for contents of an adversary: two with one hash can be made.
"""

from typing import Final

_M: Final = 0xC6A4A7935BD1E995
_SEED: Final = 0x9E3779B97F4A7C15
_MASK: Final = 0xFFFFFFFFFFFFFFFF
_SHIFT: Final = 47


def murmur64(content: bytes) -> int:
    """The hash, unsigned."""
    length = len(content)
    h = _SEED ^ ((length * _M) & _MASK)
    body = length & ~7
    for i in range(0, body, 8):
        k = (int.from_bytes(content[i : i + 8], "little") * _M) & _MASK
        k ^= k >> _SHIFT
        h = ((h ^ ((k * _M) & _MASK)) * _M) & _MASK
    if body != length:
        h = ((h ^ int.from_bytes(content[body:], "little")) * _M) & _MASK
    h ^= h >> _SHIFT
    h = (h * _M) & _MASK
    return h ^ (h >> _SHIFT)
