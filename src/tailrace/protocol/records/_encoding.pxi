# A part of _kernels.pyx: records from objects and from columns, and the hashes of keys.

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
    """None for a column of nulls: `get_span` accepts None, a method of None would be a read through a null pointer."""
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


cdef inline uint64_t murmur64(const uint8_t *content, Py_ssize_t length) noexcept nogil:
    cdef uint64_t m = 0xC6A4A7935BD1E995ULL
    cdef uint64_t h = 0x9E3779B97F4A7C15ULL ^ (<uint64_t> length * m)
    cdef uint64_t k
    cdef int i
    while length >= 8:
        k = (
            <uint64_t> content[0] | (<uint64_t> content[1] << 8) | (<uint64_t> content[2] << 16)
            | (<uint64_t> content[3] << 24) | (<uint64_t> content[4] << 32) | (<uint64_t> content[5] << 40)
            | (<uint64_t> content[6] << 48) | (<uint64_t> content[7] << 56)
        )
        k *= m
        k ^= k >> 47
        h = (h ^ (k * m)) * m
        content += 8
        length -= 8
    if length:
        for i in range(<int> length):
            h ^= <uint64_t> content[i] << (8 * i)
        h *= m
    h ^= h >> 47
    h *= m
    return h ^ (h >> 47)


def murmur64_column(column, Py_ssize_t count):
    """The 64-bit hash of each row, 0 for null; see the twin."""
    cdef BinaryView contents = binary_view(column)
    cdef bytearray hashes = make_room(8 * count if count > 0 else 0)
    cdef uint64_t *out = <uint64_t *> PyByteArray_AsString(hashes)
    cdef Span span
    cdef Py_ssize_t row
    for row in range(count):
        get_span(contents, row, &span)
        out[row] = 0 if span.size < 0 else murmur64(span.data, span.size)
    return hashes
