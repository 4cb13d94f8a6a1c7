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

from crc32c import crc32c

from tailrace.protocol.records._key_filter_twin import owners_of
from tailrace.protocol.records.arrow_buffers import BinaryBuffers, EncodedRows, HeaderBuffers, RecordColumns
from tailrace.protocol.records.faults import corrupt
from tailrace.protocol.records.split import Split

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


cdef struct Plain:
    # An uncompressed batch whose header has been checked, and where its records are.
    const uint8_t *start
    const uint8_t *end
    int64_t base_offset
    int64_t base_timestamp
    int64_t append_time
    int32_t last_offset_delta
    int32_t records_count
    bint has_append_time


cdef struct Growing:
    # Bytes that grow as they come.
    uint8_t *data
    size_t size
    size_t capacity


cdef struct BytesColumn:
    # A column whose buffers have been sized for the worst case.
    int32_t *offsets
    uint8_t *data
    uint8_t *validity
    int32_t size
    bint has_nulls


cdef struct Output:
    int columns
    bint in_micros
    int64_t from_offset
    int64_t until_offset
    Py_ssize_t row_count
    BytesColumn key
    BytesColumn value
    int64_t *offsets
    int64_t *timestamps
    int32_t *timestamp_types
    int32_t *header_offsets
    uint8_t *header_validity
    bint has_headerless
    int32_t header_count
    Growing header_key_offsets
    Growing header_key_data
    Growing header_value_offsets
    Growing header_value_data
    Growing header_value_validity
    bint has_null_header_values
    int64_t fault_base_offset
    Py_ssize_t fault_index


cdef inline int grow(Growing *column, size_t more) noexcept nogil:
    """Make room for `more` bytes; 0 or NO_MEMORY."""
    cdef size_t capacity = column.capacity
    cdef void *data
    if capacity - column.size >= more:
        return 0
    while capacity - column.size < more:
        capacity = capacity * 2 if capacity else 1024
    data = realloc(column.data, capacity)
    if data == NULL:
        return NO_MEMORY
    column.data = <uint8_t *> data
    column.capacity = capacity
    return 0


cdef inline int put_bytes(Growing *column, const void *data, size_t size) noexcept nogil:
    if grow(column, size):
        return NO_MEMORY
    if size:
        memcpy(column.data + column.size, data, size)
    column.size += size
    return 0


cdef inline void clear_bit(uint8_t *bitmap, Py_ssize_t index) noexcept nogil:
    bitmap[index >> 3] &= <uint8_t> ~(1 << (index & 7))


cdef inline void put_span(BytesColumn *column, Py_ssize_t row, Span span) noexcept nogil:
    if span.size > 0:
        memcpy(column.data + column.size, span.data, span.size)
        column.size += <int32_t> span.size
    elif span.size < 0:
        clear_bit(column.validity, row)
        column.has_nulls = True
    column.offsets[row + 1] = column.size


cdef int put_header_key(Output *out, Span name) noexcept nogil:
    cdef Py_ssize_t index
    cdef int fault = 0
    for index in range(name.size):
        if name.data[index] >= 0x80:
            with gil:
                # Once through a string makes it valid UTF-8, which Arrow's readers take for granted.
                try:
                    valid = text_of(name).encode()
                    fault = put_bytes(&out.header_key_data, PyBytes_AsString(valid), PyBytes_Size(valid))
                except MemoryError:
                    fault = NO_MEMORY
            return fault
    return put_bytes(&out.header_key_data, name.data, name.size)


cdef int put_header(Output *out, Span name, Span content) noexcept nogil:
    cdef uint8_t bit = <uint8_t> (1 << (out.header_count & 7))
    cdef uint8_t empty = 0
    cdef int32_t size
    if put_header_key(out, name):
        return NO_MEMORY
    if content.size > 0 and put_bytes(&out.header_value_data, content.data, content.size):
        return NO_MEMORY
    if out.header_key_data.size > <size_t> INT32_MAX:
        return COLUMN_OVERFLOW
    if bit == 1 and put_bytes(&out.header_value_validity, &empty, 1):
        return NO_MEMORY
    if content.size >= 0:
        out.header_value_validity.data[out.header_count >> 3] |= bit
    else:
        out.has_null_header_values = True
    out.header_count += 1
    size = <int32_t> out.header_key_data.size
    if put_bytes(&out.header_key_offsets, &size, 4):
        return NO_MEMORY
    size = <int32_t> out.header_value_data.size
    return put_bytes(&out.header_value_offsets, &size, 4)


cdef int put_headers(Output *out, RecordStart *record) noexcept nogil:
    cdef int32_t count
    cdef int32_t index
    cdef Span name, content
    cdef int fault = read_header_count(&record.at, record.end, &count)
    if fault:
        return fault
    for index in range(count):
        fault = read_header(&record.at, record.end, &name, &content)
        if fault:
            return fault
        fault = put_header(out, name, content)
        if fault:
            return fault
    if record.at != record.end:
        return RECORD_REST
    if count == 0:
        clear_bit(out.header_validity, out.row_count)
        out.has_headerless = True
    out.header_offsets[out.row_count + 1] = out.header_count
    return 0


cdef inline int put_timestamp(Output *out, const Plain *batch, int64_t delta) noexcept nogil:
    cdef int64_t timestamp
    if batch.has_append_time:
        timestamp = batch.append_time
    elif sum_overflows(batch.base_timestamp, delta):
        return TIMESTAMP
    else:
        timestamp = batch.base_timestamp + delta
    if out.in_micros:
        if timestamp > INT64_MAX // 1000 or timestamp < -(INT64_MAX // 1000):
            return TIMESTAMP
        timestamp *= 1000
    out.timestamps[out.row_count] = timestamp
    return 0


cdef inline int put_record_columns(Output *out, const Plain *batch, RecordStart *record, int64_t offset) noexcept nogil:
    cdef int fault
    cdef Span span
    cdef Py_ssize_t row = out.row_count
    if out.columns & WITH_TIMESTAMP:
        fault = put_timestamp(out, batch, record.timestamp_delta)
        if fault:
            return fault
    if out.columns & (WITH_KEY | WITH_VALUE | WITH_HEADERS):
        fault = read_span(&record.at, record.end, KEY_LENGTH, &span)
        if fault:
            return fault
        if out.columns & WITH_KEY:
            put_span(&out.key, row, span)
    if out.columns & (WITH_VALUE | WITH_HEADERS):
        fault = read_span(&record.at, record.end, VALUE_LENGTH, &span)
        if fault:
            return fault
        if out.columns & WITH_VALUE:
            put_span(&out.value, row, span)
    if out.columns & WITH_HEADERS:
        fault = put_headers(out, record)
        if fault:
            return fault
    if out.columns & WITH_OFFSET:
        out.offsets[row] = offset
    if out.columns & WITH_TIMESTAMP_TYPE:
        out.timestamp_types[row] = batch.has_append_time
    out.row_count = row + 1
    return 0


cdef int walk(Output *out, const Plain *batch) noexcept nogil:
    """Every record of the batch that is in the range; a fault or 0."""
    cdef const uint8_t *at = batch.start
    cdef int64_t previous = -1
    cdef int64_t offset
    cdef int32_t index
    cdef int fault
    cdef RecordStart record
    out.fault_base_offset = batch.base_offset
    for index in range(batch.records_count):
        fault = read_start(at, batch.end, &record)
        if not fault and (record.offset_delta <= previous or record.offset_delta > batch.last_offset_delta):
            fault = OFFSET_DELTA
        if not fault:
            offset = batch.base_offset + record.offset_delta
            if offset >= out.until_offset:
                return 0
            if offset >= out.from_offset:
                fault = put_record_columns(out, batch, &record, offset)
        if fault:
            out.fault_index = index
            return fault
        at = record.end
        previous = record.offset_delta
    if at != batch.end:
        out.fault_index = -1
        return BATCH_REST
    return 0


cdef int walk_all(Output *out, const Plain *batches, Py_ssize_t count) noexcept nogil:
    cdef Py_ssize_t index
    cdef int fault
    for index in range(count):
        fault = walk(out, &batches[index])
        if fault:
            return fault
    return 0


cdef int scan(View view, int64_t from_offset, int64_t until_offset, Growing *plains, Output *out) noexcept:
    """The batches of one buffer that touch the range, added to `plains`; a fault or 0."""
    cdef const uint8_t *at = view.data
    cdef const uint8_t *end = view.data + view.size
    cdef Plain plain
    cdef int32_t length
    cdef int16_t attributes
    while end - at >= HEADER_SIZE:
        plain.base_offset = big64(at)
        length = <int32_t> big32(at + 8)
        attributes = <int16_t> ((at[21] << 8) | at[22])
        plain.last_offset_delta = <int32_t> big32(at + 23)
        plain.base_timestamp = big64(at + 27)
        plain.append_time = big64(at + 35)
        plain.records_count = <int32_t> big32(at + 57)
        plain.has_append_time = attributes & 0x08 != 0
        out.fault_base_offset = plain.base_offset
        out.fault_index = -1
        if at[16] != 2:
            return MAGIC
        if length < SMALLEST_BATCH_LENGTH:
            return BATCH_LENGTH
        if length > end - at - 12:
            return 0
        plain.start = at + HEADER_SIZE
        plain.end = at + 12 + length
        at = plain.end
        if (
            plain.base_offset < 0
            or plain.last_offset_delta < 0
            or plain.base_offset >= INT64_MAX - plain.last_offset_delta
        ):
            return OFFSETS
        if attributes & 0x20:
            continue
        if attributes & 0x07:
            return COMPRESSED
        if (
            plain.records_count < 0
            or plain.records_count > <int64_t> plain.last_offset_delta + 1
            or <int64_t> plain.records_count * SMALLEST_RECORD > plain.end - plain.start
        ):
            return COUNT
        if plain.base_offset < until_offset and plain.base_offset + plain.last_offset_delta >= from_offset:
            if put_bytes(plains, &plain, sizeof(Plain)):
                return NO_MEMORY
    return 0


cdef object refusal(int fault, Output *out):
    if fault == NO_MEMORY:
        return MemoryError()
    if fault == COLUMN_OVERFLOW:
        return OverflowError("the keys of the headers need more than 2 GiB; decode fewer batches at a time")
    return corrupt(fault, out.fault_base_offset, out.fault_index)


cdef inline bytearray make_room(Py_ssize_t size):
    return PyByteArray_FromStringAndSize(NULL, size)


cdef class Room:
    """The buffers of a column of bytes, sized for the worst case."""

    cdef bytearray offsets, data, validity

    cdef void prepare(self, BytesColumn *column, Py_ssize_t rows, Py_ssize_t size) except *:
        self.offsets = make_room(4 * (rows + 1))
        self.data = make_room(size)
        self.validity = make_room((rows + 7) >> 3)
        column.offsets = <int32_t *> PyByteArray_AsString(self.offsets)
        column.data = <uint8_t *> PyByteArray_AsString(self.data)
        column.validity = <uint8_t *> PyByteArray_AsString(self.validity)
        column.offsets[0] = 0
        memset(column.validity, 0xFF, (rows + 7) >> 3)

    cdef object finish(self, BytesColumn *column, Py_ssize_t rows):
        PyByteArray_Resize(self.offsets, 4 * (rows + 1))
        PyByteArray_Resize(self.data, column.size)
        return BinaryBuffers(
            finish_bitmap(self.validity, rows) if column.has_nulls else None, self.offsets, self.data, 0
        )


cdef object finish_bitmap(bytearray bitmap, Py_ssize_t rows):
    """The bitmap of this many rows, the bits after the last one cleared."""
    PyByteArray_Resize(bitmap, (rows + 7) >> 3)
    if rows & 7:
        (<uint8_t *> PyByteArray_AsString(bitmap))[rows >> 3] &= <uint8_t> ((1 << (rows & 7)) - 1)
    return bitmap


cdef object finish_growing(Growing *column):
    return PyByteArray_FromStringAndSize(<const char *> column.data, column.size)


cdef object finish_headers(Output *out, bytearray validity, bytearray offsets):
    PyByteArray_Resize(offsets, 4 * (out.row_count + 1))
    return HeaderBuffers(
        finish_bitmap(validity, out.row_count) if out.has_headerless else None,
        offsets,
        BinaryBuffers(None, finish_growing(&out.header_key_offsets), finish_growing(&out.header_key_data), 0),
        BinaryBuffers(
            finish_growing(&out.header_value_validity) if out.has_null_header_values else None,
            finish_growing(&out.header_value_offsets),
            finish_growing(&out.header_value_data),
            0,
        ),
        0,
    )


cdef void free_output(Output *out) noexcept:
    free(out.header_key_offsets.data)
    free(out.header_key_data.data)
    free(out.header_value_offsets.data)
    free(out.header_value_data.data)
    free(out.header_value_validity.data)


def records_to_columns(batches, *, int columns, int64_t from_offset, int64_t until_offset, bint in_micros):
    """The records of uncompressed batches as columns; see the twin."""
    cdef list views = [View(buffer) for buffer in batches]
    cdef Py_ssize_t total = 0
    cdef View view
    cdef Output out
    cdef Growing plains
    cdef int fault = 0
    for view in views:
        total += view.size
    if total > INT32_MAX:
        raise ValueError(f"more than {MAX_INPUT} bytes of batches in one call")
    memset(&out, 0, sizeof(Output))
    memset(&plains, 0, sizeof(Growing))
    out.columns = columns
    out.in_micros = in_micros
    out.from_offset = from_offset
    out.until_offset = until_offset
    try:
        for view in views:
            fault = scan(view, from_offset, until_offset, &plains, &out)
            if fault:
                raise refusal(fault, &out)
        return columns_of(&out, <const Plain *> plains.data, plains.size // sizeof(Plain))
    finally:
        free(plains.data)
        free_output(&out)


cdef object columns_of(Output *out, const Plain *plains, Py_ssize_t count):
    cdef Py_ssize_t rows = 0
    cdef Py_ssize_t size = 0
    cdef Py_ssize_t index
    cdef int fault
    cdef int32_t zero = 0
    cdef Room key = Room()
    cdef Room value = Room()
    cdef bytearray offsets = None
    cdef bytearray timestamps = None
    cdef bytearray timestamp_types = None
    cdef bytearray header_offsets = None
    cdef bytearray header_validity = None
    for index in range(count):
        rows += plains[index].records_count
        size += plains[index].end - plains[index].start
    if out.columns & WITH_KEY:
        key.prepare(&out.key, rows, size)
    if out.columns & WITH_VALUE:
        value.prepare(&out.value, rows, size)
    if out.columns & WITH_OFFSET:
        offsets = make_room(8 * rows)
        out.offsets = <int64_t *> PyByteArray_AsString(offsets)
    if out.columns & WITH_TIMESTAMP:
        timestamps = make_room(8 * rows)
        out.timestamps = <int64_t *> PyByteArray_AsString(timestamps)
    if out.columns & WITH_TIMESTAMP_TYPE:
        timestamp_types = make_room(4 * rows)
        out.timestamp_types = <int32_t *> PyByteArray_AsString(timestamp_types)
    if out.columns & WITH_HEADERS:
        header_offsets = make_room(4 * (rows + 1))
        header_validity = make_room((rows + 7) >> 3)
        out.header_offsets = <int32_t *> PyByteArray_AsString(header_offsets)
        out.header_validity = <uint8_t *> PyByteArray_AsString(header_validity)
        out.header_offsets[0] = 0
        memset(out.header_validity, 0xFF, (rows + 7) >> 3)
        if put_bytes(&out.header_key_offsets, &zero, 4) or put_bytes(&out.header_value_offsets, &zero, 4):
            raise MemoryError()
    if size >= WORTH_A_RELEASE:
        with nogil:
            fault = walk_all(out, plains, count)
    else:
        fault = walk_all(out, plains, count)
    if fault:
        raise refusal(fault, out)
    rows = out.row_count
    if offsets is not None:
        PyByteArray_Resize(offsets, 8 * rows)
    if timestamps is not None:
        PyByteArray_Resize(timestamps, 8 * rows)
    if timestamp_types is not None:
        PyByteArray_Resize(timestamp_types, 4 * rows)
    return RecordColumns(
        rows,
        key.finish(&out.key, rows) if out.columns & WITH_KEY else None,
        value.finish(&out.value, rows) if out.columns & WITH_VALUE else None,
        offsets,
        timestamps,
        timestamp_types,
        finish_headers(out, header_validity, header_offsets) if out.columns & WITH_HEADERS else None,
    )




cdef inline Py_ssize_t varint_size(int64_t value) noexcept nogil:
    cdef uint64_t bits = (<uint64_t> value << 1) ^ <uint64_t> (value >> 63)
    cdef Py_ssize_t size = 1
    while bits > 0x7F:
        bits >>= 7
        size += 1
    return size


cdef inline uint8_t *write_varint(uint8_t *at, int64_t value) noexcept nogil:
    cdef uint64_t bits = (<uint64_t> value << 1) ^ <uint64_t> (value >> 63)
    while bits > 0x7F:
        at[0] = <uint8_t> (bits | 0x80)
        at += 1
        bits >>= 7
    at[0] = <uint8_t> bits
    return at + 1


cdef inline Py_ssize_t span_size(Span span) noexcept nogil:
    return 1 if span.size < 0 else varint_size(span.size) + span.size


cdef inline uint8_t *write_span(uint8_t *at, Span span) noexcept nogil:
    at = write_varint(at, span.size)
    if span.size > 0:
        memcpy(at, span.data, span.size)
        at += span.size
    return at


cdef inline Py_ssize_t record_length(
    int64_t offset_delta, int64_t timestamp_delta, Span key, Span value, const Span *pairs, Py_ssize_t pair_count
) noexcept nogil:
    """The bytes of a record after its own length. `pairs` holds key and value of each header in turn."""
    cdef Py_ssize_t length = 1 + varint_size(timestamp_delta) + varint_size(offset_delta)
    cdef Py_ssize_t index
    length += span_size(key) + span_size(value) + varint_size(pair_count)
    for index in range(2 * pair_count):
        length += span_size(pairs[index])
    return length


cdef inline void write_record(
    uint8_t *at, Py_ssize_t length, int64_t offset_delta, int64_t timestamp_delta, Span key, Span value,
    const Span *pairs, Py_ssize_t pair_count
) noexcept nogil:
    cdef Py_ssize_t index
    at = write_varint(at, length)
    at[0] = 0
    at = write_varint(at + 1, timestamp_delta)
    at = write_varint(at, offset_delta)
    at = write_span(at, key)
    at = write_span(at, value)
    at = write_varint(at, pair_count)
    for index in range(2 * pair_count):
        at = write_span(at, pairs[index])


cdef inline bytes plain_bytes(source):
    return source if source is None or type(source) is bytes else bytes(memoryview(source))


cdef inline Span span_of(bytes source):
    cdef Span span
    if source is None:
        span.data = NULL
        span.size = -1
    else:
        span.data = <const uint8_t *> PyBytes_AsString(source)
        span.size = PyBytes_Size(source)
    return span


def append_record(bytearray into not None, int64_t offset_delta, int64_t timestamp_delta, key, value, headers):
    """Write one record at the end of `into`; see the twin."""
    cdef bytes key_bytes = plain_bytes(key)
    cdef bytes value_bytes = plain_bytes(value)
    cdef Span key_span = span_of(key_bytes)
    cdef Span value_span = span_of(value_bytes)
    cdef list parts = []
    cdef Span *pairs = NULL
    cdef Py_ssize_t pair_count, index, length, old_size
    for name, content in headers:
        parts.append(name.encode())
        parts.append(plain_bytes(content))
    pair_count = len(parts) // 2
    if pair_count:
        pairs = <Span *> malloc(2 * pair_count * sizeof(Span))
        if pairs == NULL:
            raise MemoryError()
    try:
        for index in range(2 * pair_count):
            pairs[index] = span_of(parts[index])
        length = record_length(offset_delta, timestamp_delta, key_span, value_span, pairs, pair_count)
        old_size = PyByteArray_Size(into)
        PyByteArray_Resize(into, old_size + varint_size(length) + length)
        write_record(
            <uint8_t *> PyByteArray_AsString(into) + old_size,
            length, offset_delta, timestamp_delta, key_span, value_span, pairs, pair_count
        )
    finally:
        free(pairs)




cdef object outside(int64_t row):
    return ValueError(f"row {row} lies outside its column")


cdef class NullableView:
    """The validity of a column that begins at row `first` of its buffers."""

    cdef View validity
    cdef int64_t first

    cdef bint is_null(self, int64_t place, int64_t row) except -1:
        if self.validity is None:
            return False
        if place >> 3 >= self.validity.size:
            raise outside(row)
        return not (self.validity.data[place >> 3] >> (place & 7)) & 1

    cdef int64_t place_of(self, int64_t row, int64_t places) except -1:
        """The index of a row in buffers of this many rows."""
        if row < 0 or row > INT64_MAX - self.first or self.first + row >= places:
            raise outside(row)
        return self.first + row


cdef NullableView prepared(NullableView column, source):
    column.validity = None if source.validity is None else View(source.validity)
    column.first = source.first
    if column.first < 0:
        raise ValueError(f"a column cannot begin at row {source.first}")
    return column


cdef int span_at(View offsets, int64_t place, int64_t most, int64_t row, int64_t *start, int64_t *stop) except -1:
    """The range that the column's 32-bit offsets give for a place they have."""
    cdef int32_t pair[2]
    memcpy(pair, offsets.data + 4 * place, 8)
    if pair[0] < 0 or pair[0] > pair[1] or pair[1] > most:
        raise outside(row)
    start[0] = pair[0]
    stop[0] = pair[1]
    return 0


cdef class BinaryView(NullableView):
    cdef View offsets, data

    cdef int get(self, int64_t row, Span *span) except -1:
        cdef int64_t place = self.place_of(row, (self.offsets.size >> 2) - 1)
        cdef int64_t start, stop
        if self.is_null(place, row):
            span.data = NULL
            span.size = -1
            return 0
        span_at(self.offsets, place, self.data.size, row, &start, &stop)
        span.data = self.data.data + start
        span.size = stop - start
        return 0


cdef inline int get_span(BinaryView column, int64_t row, Span *span) except -1:
    if column is not None:
        return column.get(row, span)
    span.data = NULL
    span.size = -1
    return 0


cdef class LongView(NullableView):
    cdef View data

    cdef int64_t get(self, int64_t row, int64_t default) except? -1:
        cdef int64_t place = self.place_of(row, self.data.size >> 3)
        cdef int64_t value
        if self.is_null(place, row):
            return default
        memcpy(&value, self.data.data + 8 * place, 8)
        return value


cdef class HeaderView(NullableView):
    cdef View offsets
    cdef BinaryView keys, values
    cdef Span *pairs
    cdef Py_ssize_t capacity

    def __dealloc__(self):
        free(self.pairs)

    cdef Py_ssize_t get(self, int64_t row) except -1:
        """The number of the row's headers, which are then in `pairs`."""
        cdef int64_t place = self.place_of(row, (self.offsets.size >> 2) - 1)
        cdef int64_t start, stop, entry
        if self.is_null(place, row):
            return 0
        span_at(self.offsets, place, INT64_MAX, row, &start, &stop)
        if start == stop:
            return 0
        if self.keys is None:
            raise ValueError(f"row {row} has a header without a key")
        self.reserve(stop - start)
        for entry in range(start, stop):
            self.keys.get(entry, &self.pairs[2 * (entry - start)])
            if self.pairs[2 * (entry - start)].size < 0:
                raise ValueError(f"row {row} has a header without a key")
            get_span(self.values, entry, &self.pairs[2 * (entry - start) + 1])
        return stop - start

    cdef int reserve(self, Py_ssize_t count) except -1:
        cdef void *pairs
        # An offset that lies must not cost memory: no more entries than the keys have offsets.
        if count > self.keys.offsets.size >> 2:
            count = self.keys.offsets.size >> 2
        if count > self.capacity:
            pairs = realloc(self.pairs, 2 * count * sizeof(Span))
            if pairs == NULL:
                raise MemoryError()
            self.pairs = <Span *> pairs
            self.capacity = count
        return 0


cdef BinaryView binary_view(source):
    """None for a column of nulls: `get_span` takes one, a method of it would be a read through a null pointer."""
    cdef BinaryView column
    if source is None:
        return None
    column = prepared(BinaryView(), source)
    column.offsets = View(source.offsets)
    column.data = View(source.data)
    return column


cdef LongView long_view(source):
    cdef LongView column
    if source is None:
        return None
    column = prepared(LongView(), source)
    column.data = View(source.data)
    return column


cdef HeaderView header_view(source):
    cdef HeaderView column
    if source is None:
        return None
    column = prepared(HeaderView(), source)
    column.offsets = View(source.offsets)
    column.keys = binary_view(source.keys)
    column.values = binary_view(source.values)
    return column


def encode_columns(
    key, value, headers, timestamps, *, int64_t default_timestamp, rows, int64_t start, int64_t stop, int64_t max_bytes,
    int64_t max_records
):
    """As many rows as fit into a batch; see the twin."""
    cdef BinaryView key_column = binary_view(key)
    cdef BinaryView value_column = binary_view(value)
    cdef HeaderView header_column = header_view(headers)
    cdef LongView timestamp_column = long_view(timestamps)
    cdef View numbers = None if rows is None else View(rows)
    cdef bytearray batch = make_room(HEADER_SIZE)
    cdef Py_ssize_t size = HEADER_SIZE
    cdef Py_ssize_t length, record_size, pair_count
    cdef int64_t index, row, timestamp
    cdef int64_t base_timestamp = 0
    cdef int64_t max_timestamp = 0
    cdef int64_t count = 0
    cdef Span key_span, value_span
    key_span.data = value_span.data = NULL
    key_span.size = value_span.size = -1
    pair_count = 0
    memset(PyByteArray_AsString(batch), 0, HEADER_SIZE)
    if not 0 <= start < stop:
        raise ValueError(f"no rows from {start} to {stop}")
    if numbers is not None and stop > numbers.size >> 3:
        raise ValueError(f"row {stop - 1} of {numbers.size >> 3}")
    for index in range(start, stop if stop - start <= max_records else start + max_records):
        row = index
        if numbers is not None:
            memcpy(&row, numbers.data + 8 * index, 8)
        timestamp = default_timestamp if timestamp_column is None else timestamp_column.get(row, default_timestamp)
        if count == 0:
            base_timestamp = max_timestamp = timestamp
        get_span(key_column, row, &key_span)
        get_span(value_column, row, &value_span)
        if header_column is not None:
            pair_count = header_column.get(row)
        if difference_overflows(timestamp, base_timestamp):
            raise OverflowError("a timestamp delta needs more than 64 bits")
        length = record_length(
            count, timestamp - base_timestamp, key_span, value_span,
            header_column.pairs if header_column is not None else NULL, pair_count
        )
        record_size = varint_size(length) + length
        if count and size + record_size > max_bytes:
            break
        if size + record_size > PyByteArray_Size(batch):
            PyByteArray_Resize(batch, size + record_size + (size >> 1) + 1024)
        write_record(
            <uint8_t *> PyByteArray_AsString(batch) + size, length, count, timestamp - base_timestamp,
            key_span, value_span, header_column.pairs if header_column is not None else NULL, pair_count
        )
        size += record_size
        if timestamp > max_timestamp:
            max_timestamp = timestamp
        count += 1
    PyByteArray_Resize(batch, size)
    return EncodedRows(batch, count, base_timestamp, max_timestamp)


cdef inline uint32_t murmur2(const uint8_t *key, Py_ssize_t length) noexcept nogil:
    cdef uint32_t m = 0x5BD1E995
    cdef uint32_t h = <uint32_t> 0x9747B28CU ^ <uint32_t> length
    cdef uint32_t k
    while length >= 4:
        k = key[0] | (<uint32_t> key[1] << 8) | (<uint32_t> key[2] << 16) | (<uint32_t> key[3] << 24)
        k *= m
        k ^= k >> 24
        h = (h * m) ^ (k * m)
        key += 4
        length -= 4
    if length:
        if length == 3:
            h ^= <uint32_t> key[2] << 16
        if length >= 2:
            h ^= <uint32_t> key[1] << 8
        h ^= key[0]
        h *= m
    h ^= h >> 13
    h *= m
    return h ^ (h >> 15)


def murmur2_column(column, Py_ssize_t count):
    """The murmur2 hash of each row, 0 for null; see the twin."""
    cdef BinaryView keys = binary_view(column)
    cdef bytearray hashes = make_room(4 * count if count > 0 else 0)
    cdef int32_t *out = <int32_t *> PyByteArray_AsString(hashes)
    cdef Span span
    cdef Py_ssize_t row
    for row in range(count):
        get_span(keys, row, &span)
        out[row] = 0 if span.size < 0 else <int32_t> murmur2(span.data, span.size)
    return hashes


# The key-range filter (KIP-X)

cdef enum:
    LENGTH_AT = 8
    CRC_AT = 17
    ATTRIBUTES_AT = 21
    COUNT_AT = 57
    CODEC_MASK = 0x07
    CONTROL = 0x20
    SLOTS = 256
    SLOT_MAP = 32
    SLOT_SHIFT = 24
    NULL_KEY_BLOCK_SHIFT = 6


cdef class Part:
    """The batches of one reader, as they grow, and the one at hand."""

    cdef bytearray data
    cdef object lend, view
    cdef uint8_t *at
    cdef Py_ssize_t size, capacity, batch_at
    cdef int32_t count
    cdef int64_t end_offset

    def __cinit__(self, Py_ssize_t capacity, lend):
        self.lend = lend
        self.end_offset = -1
        self.make_room(capacity)

    cdef int make_room(self, Py_ssize_t capacity) except -1:
        """Move what is here to a buffer of so many bytes, or more."""
        cdef bytearray room = make_room(capacity) if self.lend is None else self.lend(capacity)
        if self.size:
            memcpy(PyByteArray_AsString(room), self.at, self.size)
        self.data = room
        self.view = memoryview(room)  # the next buffer that is lent is another one
        self.capacity = len(room)
        self.at = <uint8_t *> PyByteArray_AsString(room)
        return 0

    cdef int put(self, const uint8_t *source, Py_ssize_t size) except -1:
        if self.capacity - self.size < size:
            self.make_room(max(2 * self.capacity, self.size + size))
        memcpy(self.at + self.size, source, size)
        self.size += size
        return 0

    cdef int put_record(self, const uint8_t *header, const uint8_t *record, Py_ssize_t size) except -1:
        if self.count == 0:
            self.batch_at = self.size
            self.put(header, HEADER_SIZE)
        self.count += 1
        return self.put(record, size)

    cdef int seal(self) except -1:
        """Make the header that of the records that the batch has now."""
        cdef uint8_t *header = self.at + self.batch_at
        cdef Py_ssize_t size = self.size - self.batch_at
        cdef uint32_t checksum
        put_big32(header + LENGTH_AT, <uint32_t> (size - 12))
        header[ATTRIBUTES_AT + 1] &= 0xFF ^ CODEC_MASK
        put_big32(header + COUNT_AT, <uint32_t> self.count)
        checksum = crc32c(
            PyMemoryView_FromMemory(<char *> header + ATTRIBUTES_AT, size - ATTRIBUTES_AT, MEMORY_IS_READ_ONLY)
        )
        put_big32(header + CRC_AT, checksum)
        return 0

    cdef object finish(self):
        return self.view[:self.size] if self.size else b""


cdef inline void put_big32(uint8_t *at, uint32_t value) noexcept nogil:
    at[0] = <uint8_t> (value >> 24)
    at[1] = <uint8_t> (value >> 16)
    at[2] = <uint8_t> (value >> 8)
    at[3] = <uint8_t> value


cdef inline uint32_t hash_of_offset(int64_t offset) noexcept nogil:
    cdef uint32_t h = <uint32_t> (offset >> NULL_KEY_BLOCK_SHIFT)
    h ^= h >> 16
    h *= <uint32_t> 0x85EBCA6BU
    h ^= h >> 13
    h *= <uint32_t> 0xC2B2AE35U
    return h ^ (h >> 16)


cdef class Owners:
    """The hashes from which on other readers want the records, and these readers."""

    cdef Py_ssize_t count
    cdef uint32_t *starts
    cdef int32_t *ends
    cdef int32_t *readers
    cdef int32_t[SLOTS + 1] first_of_slot

    def __cinit__(self, list starts, list owners):
        cdef Py_ssize_t place, total = 0, filled = 0
        cdef int slot
        self.count = len(starts)
        for one in owners:
            total += len(one)
        self.starts = <uint32_t *> malloc(4 * self.count)
        self.ends = <int32_t *> malloc(4 * self.count)
        self.readers = <int32_t *> malloc(4 * (total + 1))
        if self.starts == NULL or self.ends == NULL or self.readers == NULL:
            raise MemoryError
        for place in range(self.count):
            self.starts[place] = <uint32_t> starts[place]
            for reader in owners[place]:
                self.readers[filled] = reader
                filled += 1
            self.ends[place] = <int32_t> filled
        place = 0
        for slot in range(SLOTS):
            while place + 1 < self.count and self.starts[place + 1] <= <uint32_t> slot << SLOT_SHIFT:
                place += 1
            self.first_of_slot[slot] = <int32_t> place
        self.first_of_slot[SLOTS] = <int32_t> (self.count - 1)

    def __dealloc__(self):
        free(self.starts)
        free(self.ends)
        free(self.readers)

    cdef inline Py_ssize_t find(self, uint32_t key_hash) noexcept:
        cdef Py_ssize_t slot = key_hash >> SLOT_SHIFT
        cdef Py_ssize_t place = self.first_of_slot[slot]
        cdef Py_ssize_t after = self.first_of_slot[slot + 1] + 1
        cdef Py_ssize_t middle
        while after - place > 1:
            middle = (place + after) // 2
            if self.starts[middle] <= key_hash:
                place = middle
            else:
                after = middle
        return place


@lru_cache(maxsize=64)
def cached_owners(tuple readers):
    """The owners of the hashes: chunk after chunk is split for the same readers."""
    return Owners(*owners_of(readers))


def split_by_key(batches, readers, lend=None):
    """The part of these batches for each reader; see the twin."""
    cdef Owners owners = cached_owners(tuple([tuple(ranges) for ranges in readers]))
    cdef list parts, views = []
    cdef Py_ssize_t total = 0
    cdef View stored, plain
    cdef bytearray slot_maps = PyByteArray_FromStringAndSize(NULL, SLOT_MAP * len(batches))
    cdef uint8_t *slot_map = <uint8_t *> PyByteArray_AsString(slot_maps)
    cdef int64_t[SLOTS] last_offsets
    cdef int slot
    cdef Part part
    memset(slot_map, 0, SLOT_MAP * len(batches))
    for stored_buffer, plain_buffer in batches:
        stored = View(stored_buffer)
        plain = None if plain_buffer is None else View(plain_buffer)
        total += stored.size if plain is None else plain.size
        views.append((stored, plain))
    if total > INT32_MAX:
        raise ValueError(f"more than {MAX_INPUT} bytes of batches in one call")
    parts = [Part(total * 5 // (4 * len(readers)) + 1024, lend) for _ in readers]
    for slot in range(SLOTS):
        last_offsets[slot] = -1
    for stored, plain in views:
        split_batch(stored, plain, owners, parts, slot_map, last_offsets)
        slot_map += SLOT_MAP
    return Split(
        tuple([part.finish() for part in parts]),
        [part.end_offset for part in parts],
        slot_maps,
        [last_offsets[slot] for slot in range(SLOTS)],
    )


cdef struct BatchRecords:
    # The records of a batch that are still to be split.
    const uint8_t *at
    const uint8_t *end
    int64_t base_offset, previous
    int32_t count, last_delta, index
    bint is_control


cdef int split_batch(
    View stored, View plain, Owners owners, list parts, uint8_t *slot_map, int64_t *last_offsets
) except -1:
    cdef BatchRecords records
    open_batch(stored, plain, &records)
    if records.is_control:
        pass_control(stored, &records, parts, slot_map, last_offsets)
        return 0
    for part in parts:
        (<Part> part).count = 0
    split_records(stored.data, &records, records.count, owners, parts, slot_map, last_offsets)
    close_batch(stored, plain, &records, parts)
    return 0


cdef int open_batch(View stored, View plain, BatchRecords *records) except -1:
    """Check the header."""
    cdef const uint8_t *header = stored.data
    if stored.size < HEADER_SIZE:
        raise corrupt(BATCH_LENGTH, -1, -1)
    records.base_offset = big64(header)
    records.last_delta = <int32_t> big32(header + 23)
    records.count = <int32_t> big32(header + COUNT_AT)
    records.previous = -1
    records.index = 0
    if header[16] != 2:
        raise corrupt(MAGIC, records.base_offset, -1)
    if <int32_t> big32(header + LENGTH_AT) < SMALLEST_BATCH_LENGTH or (
        <int64_t> <int32_t> big32(header + LENGTH_AT) + 12 != stored.size
    ):
        raise corrupt(BATCH_LENGTH, records.base_offset, -1)
    if records.base_offset < 0 or records.last_delta < 0 or records.base_offset >= INT64_MAX - records.last_delta:
        raise corrupt(OFFSETS, records.base_offset, -1)
    records.is_control = header[ATTRIBUTES_AT + 1] & CONTROL != 0
    if not records.is_control and plain is None and header[ATTRIBUTES_AT + 1] & CODEC_MASK:
        raise corrupt(COMPRESSED, records.base_offset, -1)
    records.at = header + HEADER_SIZE if plain is None else plain.data
    records.end = header + stored.size if plain is None else plain.data + plain.size
    if records.count < 0 or records.count > <int64_t> records.last_delta + 1:
        raise corrupt(COUNT, records.base_offset, -1)
    if not records.is_control and <int64_t> records.count * SMALLEST_RECORD > records.end - records.at:
        raise corrupt(COUNT, records.base_offset, -1)
    return 0


cdef int pass_control(
    View stored, BatchRecords *records, list parts, uint8_t *slot_map, int64_t *last_offsets
) except -1:
    """All get a control batch as it is."""
    cdef Part part
    cdef int slot
    for part in parts:
        part.put(stored.data, stored.size)
        part.end_offset = records.base_offset + records.last_delta + 1
    memset(slot_map, 0xFF, SLOT_MAP)
    for slot in range(SLOTS):
        last_offsets[slot] = records.base_offset + records.last_delta
    return 0


cdef int split_records(
    const uint8_t *header, BatchRecords *records, int32_t stop, Owners owners, list parts, uint8_t *slot_map,
    int64_t *last_offsets
) except -1:
    """Split the records before the one with index `stop`; behind the last one there must be no bytes."""
    cdef const uint8_t *at = records.at
    cdef int64_t base_offset = records.base_offset
    cdef int64_t previous = records.previous
    cdef int32_t index
    cdef RecordStart record
    cdef Span key
    cdef uint32_t key_hash
    cdef Py_ssize_t place, owner
    cdef int fault
    for index in range(records.index, stop):
        fault = read_start(at, records.end, &record)
        if not fault and (record.offset_delta <= previous or record.offset_delta > records.last_delta):
            fault = OFFSET_DELTA
        if not fault:
            fault = read_span(&record.at, record.end, KEY_LENGTH, &key)
        if fault:
            raise corrupt(fault, base_offset, index)
        previous = record.offset_delta
        key_hash = hash_of_offset(base_offset + previous) if key.size < 0 else murmur2(key.data, key.size)
        slot_map[key_hash >> (SLOT_SHIFT + 3)] |= <uint8_t> (1 << ((key_hash >> SLOT_SHIFT) & 7))
        last_offsets[key_hash >> SLOT_SHIFT] = base_offset + previous
        place = owners.find(key_hash)
        for owner in range(owners.ends[place - 1] if place else 0, owners.ends[place]):
            (<Part> parts[owners.readers[owner]]).put_record(header, at, record.end - at)
        at = record.end
    records.at = at
    records.previous = previous
    records.index = stop
    if stop == records.count and at != records.end:
        raise corrupt(BATCH_REST, base_offset, -1)
    return 0


cdef int close_batch(View stored, View plain, BatchRecords *records, list parts) except -1:
    """Have the batch of each part whole."""
    cdef Part part
    for part in parts:
        if part.count == 0:
            continue
        part.end_offset = records.base_offset + records.last_delta + 1
        if part.count < records.count:
            part.seal()
        elif plain is not None:  # the records as they are stored
            part.size = part.batch_at
            part.put(stored.data, stored.size)
    return 0


cdef class SteppedSplit:
    """The split of one batch, some records at a time; see the twin."""

    cdef View stored, plain
    cdef Owners owners
    cdef list parts
    cdef BatchRecords records
    cdef bytearray slot_map
    cdef int64_t[SLOTS] last_offsets

    def __init__(self, stored, plain, readers):
        cdef int slot
        cdef Py_ssize_t size
        self.stored = View(stored)
        self.plain = None if plain is None else View(plain)
        self.owners = cached_owners(tuple([tuple(ranges) for ranges in readers]))
        open_batch(self.stored, self.plain, &self.records)
        size = self.stored.size if self.plain is None else self.plain.size
        self.parts = [Part(size * 5 // (4 * len(readers)) + 1024, None) for _ in readers]
        self.slot_map = bytearray(SLOT_MAP)
        for slot in range(SLOTS):
            self.last_offsets[slot] = -1

    def step(self, int32_t max_records):
        """Split so many records more, or what is left; whether that is all."""
        cdef uint8_t *slot_map = <uint8_t *> PyByteArray_AsString(self.slot_map)
        cdef int32_t left = self.records.count - self.records.index
        if self.records.is_control:
            pass_control(self.stored, &self.records, self.parts, slot_map, self.last_offsets)
            return True
        split_records(
            self.stored.data, &self.records, self.records.index + min(max_records, left), self.owners, self.parts,
            slot_map, self.last_offsets
        )
        if max_records < left:
            return False
        close_batch(self.stored, self.plain, &self.records, self.parts)
        return True

    def result(self):
        """The split; when all records were split."""
        cdef int slot
        cdef Part part
        return Split(
            tuple([(<Part> one).finish() for one in self.parts]),
            [(<Part> one).end_offset for one in self.parts],
            self.slot_map,
            [self.last_offsets[slot] for slot in range(SLOTS)],
        )
