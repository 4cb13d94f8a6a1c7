# A part of _kernels.pyx: the filter of key ranges (KIP-X).

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
    """The growing batches of one reader, and the batch at hand."""

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
    """Pass a control batch to every reader, unchanged."""
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
    """Split the records before the record with index `stop`; behind the last record there must be no bytes."""
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
