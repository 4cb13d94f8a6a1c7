"""Produce (0): append record batches to partitions."""

from collections.abc import Callable
from struct import Struct
from typing import Final, NamedTuple

from tailrace.protocol.primitives import Buffer, uvarint
from tailrace.protocol.schema import ZERO_UUID, Int16, Int32, Int64, Records, Uuid, field, message, struct


@struct
class PartitionProduceData:
    """Exactly one record batch for one partition."""

    index: Int32
    records: Records = None


@struct
class TopicProduceData:
    """Batches for one topic: by name, or from v13 by id (KIP-516)."""

    name: str = field(versions="3-12", default="")
    topic_id: Uuid = field(versions="13+", default=ZERO_UUID)
    partition_data: tuple[PartitionProduceData, ...]


@message(api_key=0, versions="3-13", flexible="9+")
class ProduceRequest:
    """Appends batches; `acks` 0 gets no response. v7 allows zstd, v12 adds partitions to transactions by itself."""

    transactional_id: str | None = None
    acks: Int16
    timeout_ms: Int32
    topic_data: tuple[TopicProduceData, ...]


@struct
class BatchIndexAndErrorMessage:
    """A record that spoiled its batch (KIP-467)."""

    batch_index: Int32 = field(versions="8+", default=0)
    batch_index_error_message: str | None = field(versions="8+", default=None)


@struct
class NewerLeader:
    """The newer leader, named with error 6 (KIP-951)."""

    leader_id: Int32 = field(versions="10+", default=-1)
    leader_epoch: Int32 = field(versions="10+", default=-1)


@struct
class PartitionProduceResponse:
    """The offset of the batch, or -1 with an error. v8 adds the records that were invalid (KIP-467)."""

    index: Int32
    error_code: Int16 = 0
    base_offset: Int64
    log_append_time_ms: Int64 = -1
    log_start_offset: Int64 = field(versions="5+", default=-1)
    record_errors: tuple[BatchIndexAndErrorMessage, ...] = field(versions="8+", default=())
    error_message: str | None = field(versions="8+", default=None)
    current_leader: NewerLeader = field(versions="10+", tag=0, default=NewerLeader())


@struct
class TopicProduceResponse:
    """Partitions of one topic."""

    name: str = field(versions="3-12", default="")
    topic_id: Uuid = field(versions="13+", default=ZERO_UUID)
    partition_responses: tuple[PartitionProduceResponse, ...]


@struct
class NewerLeaderEndpoint:
    """The address of a leader (KIP-951)."""

    node_id: Int32 = field(versions="10+", default=0)
    host: str = field(versions="10+", default="")
    port: Int32 = field(versions="10+", default=0)
    rack: str | None = field(versions="10+", default=None)


@message(api_key=0, versions="3-13", flexible="9+")
class ProduceResponse:
    """The outcome of the batch of each partition. v10 adds the addresses of new leaders (KIP-951)."""

    responses: tuple[TopicProduceResponse, ...]
    throttle_time_ms: Int32 = 0
    node_endpoints: tuple[NewerLeaderEndpoint, ...] = field(versions="10+", tag=0, default=())


_FIRST_WITH_LOG_START: Final = 5
_FIRST_WITH_RECORD_ERRORS: Final = 8
_FIRST_FLEXIBLE: Final = 9
_FIRST_WITH_IDS: Final = 13
_MAX_FORMS: Final = 10_000

_Form = tuple[Callable[..., bytes], bytes, bytes]
_forms: dict[tuple[int, str | bytes], _Form] = {}
"""The packed form of one version's answer for one topic, with the bytes that never change."""


def encode_produced(
    version: int,
    correlation_id: int,
    topic: str | bytes,
    index: int,
    base_offset: int,
    log_append_time_ms: int,
    log_start_offset: int,
) -> bytes:
    """The whole answer to a Produce of one appended batch, header included: the most frequent answer.

    The same bytes as `encode_response` gives for this answer. `topic` is the topic's name, from version 13 on its id.
    """
    form = _forms.get((version, topic))
    if form is None:
        form = _new_form(version, topic)
    pack, head, tail = form
    if version >= _FIRST_WITH_LOG_START:
        return pack(correlation_id, head, index, 0, base_offset, log_append_time_ms, log_start_offset, tail)
    return pack(correlation_id, head, index, 0, base_offset, log_append_time_ms, tail)


def _new_form(version: int, topic: str | bytes) -> _Form:
    if version >= _FIRST_WITH_IDS:
        name = bytes(topic) if not isinstance(topic, str) else b""
        head = b"\0\2" + name + b"\2"
    elif version >= _FIRST_FLEXIBLE:
        name = str(topic).encode()
        head = b"\0\2" + uvarint(len(name) + 1) + name + b"\2"
    else:
        name = str(topic).encode()
        head = b"\0\0\0\1" + len(name).to_bytes(2, "big") + name + b"\0\0\0\1"
    if version >= _FIRST_FLEXIBLE:
        tail = (
            b"\1\0" + b"\0" + b"\0" + bytes(4) + b"\0"
        )  # no errors, no message, three tag sections, the throttle time
    elif version >= _FIRST_WITH_RECORD_ERRORS:
        tail = bytes(4) + b"\xff\xff" + bytes(4)
    else:
        tail = bytes(4)
    offsets = "qqq" if version >= _FIRST_WITH_LOG_START else "qq"
    form = (Struct(f">i{len(head)}sih{offsets}{len(tail)}s").pack, head, tail)
    if len(_forms) >= _MAX_FORMS:
        _forms.clear()
    _forms[version, topic] = form
    return form


_INDEX_AND_SIZE = Struct(">ii")
_INDEX_AND_BYTE = Struct(">iB")
_HEAD_AT: Final = 8
"""The offset of the rest of the header, behind key, version and correlation id."""
_ENOUGH: Final = 64
MAX_FORMS: Final = 64
"""The most forms of a connection: some 30 KB."""
_LONGEST_HEAD: Final = 400
_MAX_HEAD_SIZES: Final = 8
_TAGS_BEHIND: Final = bytes(3)
"""The tag sections of partition, topic and request."""


class ProduceForm(NamedTuple):
    """The bytes before the partition, equal in all requests of a producer that sends one batch at a time.

    With a form, reading the next request of the same form is one comparison. `form_of` makes a form of a request that
    was read in full.
    """

    version: int
    head: bytes
    """The frame from the client id's length to the partition's index."""
    client_id: str | None
    request: ProduceRequest
    topic: TopicProduceData
    """The topic of the request, without partitions."""

    def read(self, frame: memoryview) -> tuple[int, memoryview] | None:
        """Partition and records of the frame, of the same version; None for a frame of another form."""
        head = self.head
        position = _HEAD_AT + len(head)
        if frame[_HEAD_AT:position] != head or len(frame) - position < _INDEX_AND_SIZE.size:
            return None
        if self.version < _FIRST_FLEXIBLE:
            index, size = _INDEX_AND_SIZE.unpack_from(frame, position)
            return (index, frame[position + 8 :]) if size > 0 and position + 8 + size == len(frame) else None
        index, size = _INDEX_AND_BYTE.unpack_from(frame, position)
        position += 5
        stop = len(frame) - len(_TAGS_BEHIND)
        if size > 127:
            size &= 127
            shift = 7
            byte = 128
            while byte > 127:
                if shift > 21 or position == stop:
                    return None  # 256 MiB and more: such a frame is not served
                byte = frame[position]
                position += 1
                size |= (byte & 127) << shift
                shift += 7
        if size < 2 or position + size - 1 != stop or frame[stop:] != _TAGS_BEHIND:
            return None
        return index, frame[position:stop]


def form_of(frame: memoryview, version: int, client_id: str | None, request: ProduceRequest) -> ProduceForm | None:
    """The form of a frame that has been read in full; None unless the frame has one batch and reads the same with the
    form."""
    if len(request.topic_data) != 1 or len(request.topic_data[0].partition_data) != 1:
        return None
    topic = request.topic_data[0]
    (data,) = topic.partition_data
    records = data.records
    if not records:
        return None
    size = 4 if version < _FIRST_FLEXIBLE else len(uvarint(len(records) + 1)) + len(_TAGS_BEHIND)
    end = len(frame) - len(records) - size - 4
    bare_topic = TopicProduceData(name=topic.name, topic_id=topic.topic_id, partition_data=())
    bare_request = ProduceRequest(
        transactional_id=request.transactional_id, acks=request.acks, timeout_ms=request.timeout_ms, topic_data=()
    )
    form = ProduceForm(version, bytes(frame[_HEAD_AT:end]), client_id, bare_request, bare_topic)
    found = form.read(frame)
    return form if found is not None and found[0] == data.index and _is_same_view(found[1], records) else None


def _is_same_view(found: Buffer, expected: Buffer) -> bool:
    """Whether two parts of one frame are the same part, if both have at least the length of a batch's header.

    Not `==`: Python compares views byte by byte, and that took a third of the CPU of a node that is sent large batches.
    """
    return (
        len(found) == len(expected)
        and found[:_ENOUGH] == expected[:_ENOUGH]
        and found[-_ENOUGH:] == expected[-_ENOUGH:]
    )


class ProduceForms:
    """The forms of one connection's requests: one per topic, as a rule."""

    __slots__ = ("_by_head", "_head_sizes", "last")

    def __init__(self) -> None:
        self.last: ProduceForm | None = None
        """The form that was found or added last: most requests are like the request before."""
        self._by_head: dict[bytes, ProduceForm] = {}
        self._head_sizes: tuple[int, ...] = ()

    def __len__(self) -> int:
        return len(self._by_head)

    def add(self, form: ProduceForm) -> None:
        """Remember this form. When there are many forms, all other forms are forgotten: a hostile client could send any
        number of forms."""
        size = len(form.head)
        if size > _LONGEST_HEAD:
            return
        if len(self._by_head) >= MAX_FORMS or (
            size not in self._head_sizes and len(self._head_sizes) >= _MAX_HEAD_SIZES
        ):
            self._by_head.clear()
            self._head_sizes = ()
        self._by_head[form.head] = self.last = form
        if size not in self._head_sizes:
            self._head_sizes = (*self._head_sizes, size)

    def find(self, frame: memoryview) -> ProduceForm | None:
        """The form that matches the first bytes of this frame."""
        for size in self._head_sizes:
            form = self._by_head.get(bytes(frame[_HEAD_AT : _HEAD_AT + size]))
            if form is not None:
                self.last = form
                return form
        return None
