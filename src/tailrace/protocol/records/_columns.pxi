# A part of _kernels.pyx: the records of batches as columns of Arrow.

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
