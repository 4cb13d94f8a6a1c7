"""From a command to the bytes that are appended, in steps: decided, tried on the image, encoded (pure)."""

from collections.abc import Sequence
from typing import Final, NamedTuple, Protocol

from tailrace.metadata.commands import ControllerCommand, ControllerResponse
from tailrace.metadata.controller import ControllerMachine
from tailrace.metadata.derive import SLICE, Steps
from tailrace.metadata.image import ClusterImage, ImageDelta
from tailrace.metadata.records import MetadataRecord, encode_record
from tailrace.model.errors import ErrorCode, KafkaError
from tailrace.protocol.records.record import record_size_bound
from tailrace.server.quorum.metadata_directory import MAX_BATCH_BYTES

_BATCH_HEADROOM: Final = 256


class EndOfLog(Protocol):
    """The offset of the next record."""

    @property
    def end_offset(self) -> int: ...


class Prepared(NamedTuple):
    """A decision that can be appended at once: the log ends where it was made for."""

    response: ControllerResponse
    image: ClusterImage
    delta: ImageDelta
    values: tuple[bytes, ...]
    """Empty for a decision that changes nothing."""
    size_bytes: int


def prepared(machine: ControllerMachine, log: EndOfLog, command: ControllerCommand, now_ms: int) -> Steps[Prepared]:
    """Decide on this command. The machine decides on no other one meanwhile.

    Raises KafkaError if it is refused as a whole: POLICY_VIOLATION if its records do not fit into a batch.
    """
    offset = log.end_offset
    decision = yield from machine.deciding(command, now_ms, next_offset=offset)
    if not decision.records:
        return Prepared(decision.response, machine.image, ImageDelta(), (), 0)
    while True:
        image, delta = yield from machine.trial(decision.records)
        values = yield from _encoded(decision.records)
        if log.end_offset == offset:
            break
        # Commands wait for each other; control records do not wait for them.
        offset = log.end_offset
        decision = machine.at_offset(decision, offset)
    size_bytes = _BATCH_HEADROOM + sum(record_size_bound(None, value) for value in values)
    if size_bytes > MAX_BATCH_BYTES:
        raise KafkaError(
            ErrorCode.POLICY_VIOLATION,
            f"this request makes a batch of {size_bytes} bytes of metadata, more than {MAX_BATCH_BYTES};"
            " ask in several",
        )
    return Prepared(decision.response, image, delta, values, size_bytes)


def _encoded(records: Sequence[MetadataRecord]) -> Steps[tuple[bytes, ...]]:
    values = []
    for index, record in enumerate(records, 1):
        values.append(encode_record(record))
        if index % SLICE == 0:
            yield
    return tuple(values)
