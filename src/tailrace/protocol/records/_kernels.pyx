# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False, embedsignature=True
"""The kernels in C: the loops over many records. `_kernels_twin` says what each gives; both must agree in every byte and
every error.

The bytes are foreign. Rules that keep the C safe:

1. No length is used before it was compared with what is left: positions never pass `end`, whatever the bytes say.
2. Output is sized from the input before the loop: a record takes 7 bytes at least, so a batch of n bytes cannot have
   more than n / 7, and keys and values together cannot have more than n bytes. Only headers grow as they come.
3. All input of one call is below 2 GiB, so that 32-bit offsets hold.
"""

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytearray cimport PyByteArray_AsString, PyByteArray_FromStringAndSize, PyByteArray_Resize, PyByteArray_Size
from cpython.bytes cimport PyBytes_AsString, PyBytes_FromStringAndSize, PyBytes_Size
from libc.stdint cimport INT32_MAX, INT64_MAX, INT64_MIN, int16_t, int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport free, malloc, realloc
from libc.string cimport memcpy, memset

from functools import lru_cache

from tailrace.model.checksum import crc32c
from tailrace.protocol.records.arrow_buffers import BinaryBuffers, EncodedRows, HeaderBuffers, RecordColumns
from tailrace.protocol.records.faults import corrupt
from tailrace.protocol.records.split import Split, owners_of

cdef extern from "Python.h":
    object PyMemoryView_FromMemory(char *data, Py_ssize_t size, int flags)
    int MEMORY_IS_READ_ONLY "PyBUF_READ"
    object PyUnicode_DecodeUTF8(const char *text, Py_ssize_t size, const char *errors)

KERNEL = "C"
MAX_INPUT = INT32_MAX

# The numbers of faults.Fault; a test compares them.
cdef enum:
    MAGIC = 1
    BATCH_LENGTH = 2
    OFFSETS = 3
    COUNT = 4
    COMPRESSED = 5
    VARINT = 6
    RECORD_LENGTH = 7
    KEY_LENGTH = 8
    VALUE_LENGTH = 9
    HEADER_COUNT = 10
    HEADER_KEY_LENGTH = 11
    HEADER_VALUE_LENGTH = 12
    RECORD_REST = 13
    BATCH_REST = 14
    OFFSET_DELTA = 15
    TIMESTAMP = 16
    # Not faults of the data.
    NO_MEMORY = 100
    COLUMN_OVERFLOW = 101

FAULT_NUMBERS = {
    "MAGIC": MAGIC, "BATCH_LENGTH": BATCH_LENGTH, "OFFSETS": OFFSETS, "COUNT": COUNT, "COMPRESSED": COMPRESSED,
    "VARINT": VARINT, "RECORD_LENGTH": RECORD_LENGTH, "KEY_LENGTH": KEY_LENGTH, "VALUE_LENGTH": VALUE_LENGTH,
    "HEADER_COUNT": HEADER_COUNT, "HEADER_KEY_LENGTH": HEADER_KEY_LENGTH, "HEADER_VALUE_LENGTH": HEADER_VALUE_LENGTH,
    "RECORD_REST": RECORD_REST, "BATCH_REST": BATCH_REST, "OFFSET_DELTA": OFFSET_DELTA, "TIMESTAMP": TIMESTAMP,
}

# The numbers of faults.Walk; a test compares them.
cdef enum:
    WALK_END = 0
    WALK_EPOCH = 1
    WALK_LENGTH = 2
    WALK_MAGIC = 3
    WALK_OFFSET = 4
    WALK_LEADER_EPOCH = 5

WALK_NUMBERS = {
    "END": WALK_END, "EPOCH": WALK_EPOCH, "LENGTH": WALK_LENGTH, "MAGIC": WALK_MAGIC, "OFFSET": WALK_OFFSET,
    "LEADER_EPOCH": WALK_LEADER_EPOCH,
}

# The numbers of arrow_buffers.Column.
cdef enum:
    WITH_KEY = 1
    WITH_VALUE = 2
    WITH_OFFSET = 4
    WITH_TIMESTAMP = 8
    WITH_TIMESTAMP_TYPE = 16
    WITH_HEADERS = 32

cdef enum:
    HEADER_SIZE = 61
    SMALLEST_BATCH_LENGTH = 49
    SMALLEST_RECORD = 7
    SHORTEST_RECORD = 6
    # Below this, releasing the interpreter costs more than it gives.
    WORTH_A_RELEASE = 65536


cdef struct Span:
    # Bytes somewhere else; size -1 is null.
    const uint8_t *data
    Py_ssize_t size


cdef struct RecordStart:
    # A record whose key begins at `at`.
    const uint8_t *at
    const uint8_t *end
    int64_t timestamp_delta
    int32_t offset_delta


cdef class View:
    """A buffer, held while its bytes are used."""

    cdef Py_buffer raw
    cdef const uint8_t *data
    cdef Py_ssize_t size
    cdef bint is_held

    def __cinit__(self, source):
        PyObject_GetBuffer(source, &self.raw, PyBUF_SIMPLE)
        self.is_held = True
        self.data = <const uint8_t *> self.raw.buf
        self.size = self.raw.len

    def __dealloc__(self):
        if self.is_held:
            PyBuffer_Release(&self.raw)




cdef inline uint32_t big32(const uint8_t *at) noexcept nogil:
    return (<uint32_t> at[0] << 24) | (<uint32_t> at[1] << 16) | (<uint32_t> at[2] << 8) | at[3]


cdef inline int64_t big64(const uint8_t *at) noexcept nogil:
    return <int64_t> ((<uint64_t> big32(at) << 32) | big32(at + 4))


cdef inline bint sum_overflows(int64_t a, int64_t b) noexcept nogil:
    return a > INT64_MAX - b if b > 0 else a < INT64_MIN - b


cdef inline bint difference_overflows(int64_t a, int64_t b) noexcept nogil:
    return a < INT64_MIN + b if b > 0 else a > INT64_MAX + b


cdef inline int read_varint(const uint8_t **at, const uint8_t *end, int32_t *value) noexcept nogil:
    cdef const uint8_t *p = at[0]
    cdef uint32_t bits = 0
    cdef uint32_t byte
    cdef int shift = 0
    while p < end:
        byte = p[0]
        p += 1
        if shift == 28 and byte > 0x0F:
            return VARINT
        bits |= (byte & 0x7F) << shift
        if byte < 0x80:
            value[0] = <int32_t> ((bits >> 1) ^ (0 - (bits & 1)))
            at[0] = p
            return 0
        shift += 7
    return VARINT


cdef inline int read_varlong(const uint8_t **at, const uint8_t *end, int64_t *value) noexcept nogil:
    cdef const uint8_t *p = at[0]
    cdef uint64_t bits = 0
    cdef uint64_t byte
    cdef int shift = 0
    while p < end:
        byte = p[0]
        p += 1
        if shift == 63 and byte > 0x01:
            return VARINT
        bits |= (byte & 0x7F) << shift
        if byte < 0x80:
            value[0] = <int64_t> ((bits >> 1) ^ (0 - (bits & 1)))
            at[0] = p
            return 0
        shift += 7
    return VARINT


cdef inline int read_start(const uint8_t *at, const uint8_t *batch_end, RecordStart *record) noexcept nogil:
    """The record at `at`, as far as its key."""
    cdef int32_t length
    if read_varint(&at, batch_end, &length):
        return VARINT
    if length < SHORTEST_RECORD or length > batch_end - at:
        return RECORD_LENGTH
    record.end = at + length
    at += 1
    if read_varlong(&at, record.end, &record.timestamp_delta) or read_varint(&at, record.end, &record.offset_delta):
        return VARINT
    record.at = at
    return 0


cdef inline int read_span(const uint8_t **at, const uint8_t *end, int fault, Span *span) noexcept nogil:
    """A length and as many bytes; -1 is null."""
    cdef int32_t length
    if read_varint(at, end, &length):
        return VARINT
    if length < -1 or length > end - at[0]:
        return fault
    span.data = at[0]
    span.size = length
    if length > 0:
        at[0] += length
    return 0


cdef inline int read_header_count(const uint8_t **at, const uint8_t *end, int32_t *count) noexcept nogil:
    if read_varint(at, end, count):
        return VARINT
    return HEADER_COUNT if count[0] < 0 or count[0] > (end - at[0]) // 2 else 0


cdef inline int read_header(const uint8_t **at, const uint8_t *end, Span *name, Span *content) noexcept nogil:
    cdef int fault = read_span(at, end, HEADER_KEY_LENGTH, name)
    if fault:
        return fault
    if name.size < 0:
        return HEADER_KEY_LENGTH
    return read_span(at, end, HEADER_VALUE_LENGTH, content)


cdef inline object bytes_of(Span span):
    return None if span.size < 0 else PyBytes_FromStringAndSize(<const char *> span.data, span.size)


cdef inline object text_of(Span span):
    # As Kafka's own client: a key that is not UTF-8 must not make the partition unreadable.
    return PyUnicode_DecodeUTF8(<const char *> span.data, span.size, b"replace")


cdef tuple NO_HEADERS = ()


cdef int read_headers(const uint8_t **at, const uint8_t *end, list headers) except -1:
    """Every header of a record, added to `headers`; gives the fault or 0."""
    cdef int32_t count
    cdef Span name, content
    cdef int fault = read_header_count(at, end, &count)
    if fault:
        return fault
    for _ in range(count):
        fault = read_header(at, end, &name, &content)
        if fault:
            return fault
        headers.append((text_of(name), bytes_of(content)))
    return 0


def parse_records(
    section, make, *, Py_ssize_t count, int64_t base_offset, int64_t last_offset_delta, int64_t base_timestamp,
    append_time, bint dense
):
    """The records of one batch as `make((offset, timestamp, key, value, headers))`; see the twin."""
    cdef View view = View(section)
    cdef const uint8_t *at = view.data
    cdef const uint8_t *batch_end = view.data + view.size
    cdef bint has_append_time = append_time is not None
    cdef int64_t fixed_timestamp = append_time if has_append_time else 0
    cdef int64_t previous = -1
    cdef RecordStart record
    cdef Span key, value
    cdef Py_ssize_t index
    cdef int fault
    cdef list rows = []
    cdef list headers
    for index in range(count):
        fault = read_start(at, batch_end, &record)
        if not fault and (
            record.offset_delta <= previous
            or record.offset_delta > last_offset_delta
            or (dense and record.offset_delta != index)
        ):
            fault = OFFSET_DELTA
        if not fault and not has_append_time and sum_overflows(base_timestamp, record.timestamp_delta):
            fault = TIMESTAMP
        if not fault:
            fault = read_span(&record.at, record.end, KEY_LENGTH, &key)
        if not fault:
            fault = read_span(&record.at, record.end, VALUE_LENGTH, &value)
        if fault:
            raise corrupt(fault, base_offset, index)
        if record.at < record.end and record.at[0] == 0:
            record.at += 1
            headers = None
        else:
            headers = []
            fault = read_headers(&record.at, record.end, headers)
        if not fault and record.at != record.end:
            fault = RECORD_REST
        if fault:
            raise corrupt(fault, base_offset, index)
        rows.append(
            make((
                base_offset + record.offset_delta,
                fixed_timestamp if has_append_time else base_timestamp + record.timestamp_delta,
                bytes_of(key),
                bytes_of(value),
                NO_HEADERS if headers is None else tuple(headers),
            ))
        )
        at = record.end
        previous = record.offset_delta
    if at != batch_end:
        raise corrupt(BATCH_REST, base_offset, -1)
    return rows




def walk_batches(
    data, Py_ssize_t at, int64_t next_offset, int64_t until_offset, int64_t gap_limit, int32_t epoch,
    int64_t epoch_end,
):
    """See the twin."""
    cdef View view = View(data)
    cdef const uint8_t *header
    cdef int64_t base_offset
    cdef int32_t length, delta
    cdef int status = WALK_END
    if at < 0:
        raise ValueError("a walk begins at position 0 or above it")
    while view.size - at >= HEADER_SIZE:
        header = view.data + at
        base_offset = big64(header)
        length = <int32_t> big32(header + 8)
        delta = <int32_t> big32(header + 23)
        if length < SMALLEST_BATCH_LENGTH:
            status = WALK_LENGTH
            break
        if header[16] != 2:
            status = WALK_MAGIC
            break
        if base_offset != next_offset and not next_offset < base_offset <= gap_limit:
            status = WALK_OFFSET
            break
        if delta < 0 or base_offset >= INT64_MAX - delta:
            status = WALK_OFFSET
            break
        if base_offset >= epoch_end:
            status = WALK_EPOCH
            break
        if epoch >= 0 and <int32_t> big32(header + 12) != epoch:
            status = WALK_LEADER_EPOCH
            break
        if length > view.size - at - 12 or base_offset + delta >= until_offset:
            break
        at += 12 + <Py_ssize_t> length
        next_offset = base_offset + delta + 1
    return at, next_offset, status


include "_columns.pxi"
include "_encoding.pxi"
include "_key_filter.pxi"
include "_checking.pxi"
