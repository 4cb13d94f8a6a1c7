"""The hash that decides a key's partition: murmur2, as in Kafka's default partitioner."""

_M = 0x5BD1E995
_MASK = 0xFFFFFFFF


def murmur2(key: bytes) -> int:
    """The signed 32-bit murmur2 hash of a key, equal to Kafka's `Utils.murmur2`."""
    length = len(key)
    h = 0x9747B28C ^ length
    body = length & ~3
    for i in range(0, body, 4):
        k = int.from_bytes(key[i : i + 4], "little")
        k = (k * _M) & _MASK
        k ^= k >> 24
        k = (k * _M) & _MASK
        h = ((h * _M) & _MASK) ^ k
    if body != length:
        h ^= int.from_bytes(key[body:], "little")
        h = (h * _M) & _MASK
    h ^= h >> 13
    h = (h * _M) & _MASK
    h ^= h >> 15
    return h - 0x100000000 if h & 0x80000000 else h


def partition_for_key(key: bytes, partition_count: int) -> int:
    """The partition, 0 <= p < partition_count, that every Kafka client's murmur2 partitioner gives this key."""
    return (murmur2(key) & 0x7FFFFFFF) % partition_count


def java_string_hash(text: str) -> int:
    """Java's `String.hashCode`, signed 32 bits, over UTF-16 units."""
    h = 0
    units = text.encode("utf-16-le", "surrogatepass")
    for i in range(0, len(units), 2):
        h = (31 * h + (units[i] | units[i + 1] << 8)) & _MASK
    return h - 0x100000000 if h & 0x80000000 else h


def coordinator_partition(name: str, partition_count: int) -> int:
    """The partition of `__consumer_offsets` or `__transaction_state` that keeps this group or transactional id."""
    return (java_string_hash(name) & 0x7FFFFFFF) % partition_count
