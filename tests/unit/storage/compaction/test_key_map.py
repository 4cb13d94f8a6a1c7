from tailrace.storage.compaction.batch_filter import DIGEST_BYTES, KeyMap, name_of


def test_the_largest_offset_of_a_key_counts() -> None:
    keys = KeyMap(1 << 20)
    for key, offset in ((b"a", 3), (b"b" * 100, 4), (b"a", 7), (b"a", 5)):
        keys.put(key, offset)
    assert [keys.last_offset(key) for key in (b"a", b"b" * 100, b"c", b"")] == [7, 4, -1, -1]


def test_no_key_can_pass_for_the_digest_of_another() -> None:
    long = b"x" * DIGEST_BYTES
    keys = KeyMap(1 << 20)
    keys.put(long, 1)
    assert keys.last_offset(name_of(long)) == -1


def test_it_is_full_when_its_memory_is_used_up_and_not_by_the_same_key() -> None:
    keys = KeyMap(1000)
    for offset in range(100):
        keys.put(b"same", offset)
    assert not keys.is_full
    count = 0
    while not keys.is_full:
        keys.put(b"%d" % count, count)
        count += 1
    assert 2 <= count <= 6
    assert len(keys) == count + 1
