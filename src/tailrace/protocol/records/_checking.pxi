# A part of _kernels.pyx: what a broker has to know of the records that a producer sent.

cdef inline int check_headers(const uint8_t **at, const uint8_t *end) noexcept nogil:
    """Pass over every header of a record."""
    cdef int32_t count, index
    cdef Span name, content
    cdef int fault = read_header_count(at, end, &count)
    if fault:
        return fault
    for index in range(count):
        fault = read_header(at, end, &name, &content)
        if fault:
            return fault
    return 0


cdef inline bint is_cut(const uint8_t *at, const uint8_t *end) noexcept nogil:
    """Whether the bytes may end within the record at `at`."""
    cdef int32_t length
    if end - at < 5:
        return True
    return read_varint(&at, end, &length) == 0 and length > end - at


def check_records(section, Py_ssize_t at, Py_ssize_t count, int64_t base_timestamp, bint is_part=False):
    """Walk over all records of a produced batch; see the twin."""
    cdef View view = View(section)
    cdef const uint8_t *position
    cdef const uint8_t *batch_end = view.data + view.size
    cdef int64_t largest = -1
    cdef int64_t smallest = INT64_MAX
    cdef int64_t timestamp
    cdef bint all_have_keys = True
    cdef bint is_in_order = True
    cdef RecordStart record
    cdef Span key, value
    cdef Py_ssize_t index
    cdef int fault
    if not 0 <= at <= view.size:
        raise ValueError("the records begin outside of their bytes")
    position = view.data + at
    for index in range(count):
        if is_part and is_cut(position, batch_end):
            return largest, smallest, all_have_keys, is_in_order
        fault = read_start(position, batch_end, &record)
        if not fault and sum_overflows(base_timestamp, record.timestamp_delta):
            fault = TIMESTAMP
        if not fault:
            fault = read_span(&record.at, record.end, KEY_LENGTH, &key)
        if not fault:
            fault = read_span(&record.at, record.end, VALUE_LENGTH, &value)
        if not fault:
            if record.at < record.end and record.at[0] == 0:
                record.at += 1
            else:
                fault = check_headers(&record.at, record.end)
        if not fault and record.at != record.end:
            fault = RECORD_REST
        if fault:
            raise corrupt(fault, 0, index)
        timestamp = base_timestamp + record.timestamp_delta
        if timestamp > largest:
            largest = timestamp
        if timestamp < smallest and timestamp != -1:
            smallest = timestamp
        if key.size < 0:
            all_have_keys = False
        if record.offset_delta != index:
            is_in_order = False
        position = record.end
    if position != batch_end:
        raise corrupt(BATCH_REST, 0, -1)
    return largest, smallest, all_have_keys, is_in_order


def renumber_records(section, Py_ssize_t at, Py_ssize_t count):
    """The records of a batch with the offset deltas 0 to n - 1; see the twin."""
    cdef View view = View(section)
    cdef const uint8_t *position
    cdef const uint8_t *start
    cdef const uint8_t *batch_end = view.data + view.size
    cdef int64_t delta
    cdef int32_t length
    cdef RecordStart record
    cdef Py_ssize_t index, head, rest
    cdef uint8_t *out
    cdef uint8_t *begin
    cdef int fault
    if not 0 <= at <= view.size:
        raise ValueError("the records begin outside of their bytes")
    position = view.data + at
    if count < 0 or count > (batch_end - position) // SMALLEST_RECORD:
        raise corrupt(COUNT, 0, -1)
    # A record grows by at most 4 bytes of its offset delta and 4 of its length.
    cdef bytearray made = PyByteArray_FromStringAndSize(NULL, (batch_end - position) + 8 * count)
    begin = out = <uint8_t *> PyByteArray_AsString(made)
    for index in range(count):
        fault = read_start(position, batch_end, &record)
        if fault:
            raise corrupt(fault, 0, index)
        start = position
        read_varint(&start, batch_end, &length)
        position = start + 1
        read_varlong(&position, record.end, &delta)
        head = position - start
        rest = record.end - record.at
        out = write_varint(out, head + varint_size(index) + rest)
        memcpy(out, start, head)
        out = write_varint(out + head, index)
        memcpy(out, record.at, rest)
        out += rest
        position = record.end
    if position != batch_end:
        raise corrupt(BATCH_REST, 0, -1)
    PyByteArray_Resize(made, out - begin)
    return made
