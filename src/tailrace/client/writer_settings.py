"""Settings of a producer."""

from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass
from typing import Final, Generic, Literal

from tailrace.client.serialization import K, V
from tailrace.client.setting_fields import INT64, alias, function, invalid, number
from tailrace.client.settings import ClientSettings
from tailrace.model.errors import ErrorCode, KafkaError
from tailrace.protocol.records.compression import Codec

Partitioner = Callable[[str, bytes | None, int], int]
"""(topic, key, number of partitions) -> partition."""

Compression = Literal["none", "gzip", "snappy", "lz4", "zstd"]

_ACKS: Final = {"all": -1, "-1": -1, "0": 0, "1": 1}


@dataclass(frozen=True)
class ProducerSettings(ClientSettings, Generic[K, V]):
    """The settings of a producer."""

    _: KW_ONLY
    acks: Literal["all", "-1", "0", "1", -1, 0, 1] = "all"
    """The acknowledgement that a record needs: `all` of every in-sync replica, `1` of the leader alone, `0` none: then
    the loss of a record goes unnoticed."""
    compression: Compression | Codec | None = None
    """The codec of batches; None: batches are not compressed."""
    compression_type: Compression | None = alias("compression")
    linger_ms: int = 5
    """The time for which a record waits for more records of its batch."""
    batch_size: int = 16_384
    """The size at which a batch is sent at once. A larger record is a batch of its own."""
    buffer_memory: int = number(33_554_432, most=INT64)
    """The memory for records that are not acknowledged; while the memory is full, `send` waits."""
    delivery_timeout_ms: int = 120_000
    """The time after which the producer gives up a record that is not acknowledged, with its retries."""
    max_block_ms: int = 60_000
    """The longest wait of `send` for space and for the partitions of a topic, and of a call that begins or ends a
    transaction."""
    max_request_size: int = 1_048_576
    """The size of the largest record, and of the records of one request."""
    idempotent: bool | None = None
    """Whether each record is written once and in order, however often it is retried. None: yes with acks=all."""
    enable_idempotence: bool | None = alias("idempotent")
    transactional_id: str | None = None
    """The name of a producer that writes transactions. A later producer of the same name fences the earlier producer.
    Names are not shared by producers that run at the same time."""
    transaction_timeout_ms: int = 60_000
    """The time after which the coordinator aborts an open transaction."""
    key_serializer: Callable[[K], bytes] | None = function()
    """A function that makes the bytes of a key; None: keys are bytes."""
    value_serializer: Callable[[V], bytes] | None = function()
    """A function that makes the bytes of a value; None: values are bytes."""
    partitioner: Partitioner | None = function()
    """A function of topic, key and number of partitions that returns the partition of a record. None: by the murmur2
    hash of the key, as Java's client; without a key, one partition until it has got `batch_size` bytes, then
    another."""
    client_id: str = "tailrace-producer"

    def __post_init__(self) -> None:
        super().__post_init__()
        if str(self.acks) not in _ACKS:
            raise KafkaError(ErrorCode.INVALID_REQUIRED_ACKS, f"acks={self.acks!r}; say all, 1 or 0")
        if self.is_idempotent and self.acks_number != -1:
            detail = f"acks={self.acks}: an idempotent producer needs acks=all"
            raise KafkaError(ErrorCode.INVALID_REQUIRED_ACKS, detail)
        if self.transactional_id is not None and not (self.is_idempotent and self.transactional_id):
            detail = "transactional_id needs at least one character, and an idempotent producer with acks=all"
            raise invalid(detail)
        parse_codec(self.compression)

    @property
    def acks_number(self) -> int:
        """The number in a Produce request: -1 for all."""
        return _ACKS[str(self.acks)]

    @property
    def is_idempotent(self) -> bool:
        """Whether the producer numbers its batches: by default with acks=all."""
        return self.acks_number == -1 if self.idempotent is None else self.idempotent

    def pending(self, situation: str) -> str:
        """The text about records that wait: why, and how long they may."""
        limit = f"delivery.timeout.ms {self.delivery_timeout_ms}"
        return f"{situation}; the producer tries on, until {limit} at most: wait longer, or set that time"

    def buffer_full(self, situation: str) -> KafkaError:
        """The error of a record for which there was no space in time. `situation`: the reason of the wait."""
        detail = f"buffer.memory {self.buffer_memory} stayed full for max.block.ms {self.max_block_ms}; {situation}"
        return KafkaError(ErrorCode.REQUEST_TIMED_OUT, detail)


def parse_codec(name: str | Codec | None) -> Codec:
    """The codec of this name; no codec for None. Raises KafkaError(UNSUPPORTED_COMPRESSION_TYPE) that lists the
    names."""
    if name is None or isinstance(name, Codec):
        return name or Codec.NONE
    codec = Codec.__members__.get(str(name).upper())
    if codec is None:
        known = ", ".join(codec.name.lower() for codec in Codec)
        raise KafkaError(ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, f"codec {name!r}; known are {known}")
    return codec
