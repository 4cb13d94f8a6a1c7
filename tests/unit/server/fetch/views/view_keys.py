"""A view of four partitions, and keys of its records."""

from tailrace.model.key_ranges import contains, hash_of
from tailrace.model.views import key_range_of

VIEW = "orders.shared-4"


KEYS = [b"key-%d" % number for number in range(60)]


def key_in(number: int, *, nth: int = 0) -> bytes:
    """A key whose records are in this partition of the view."""
    wanted = [key_range_of(number, 4)]
    return [key for key in KEYS if contains(wanted, hash_of(key, 0))][nth]
