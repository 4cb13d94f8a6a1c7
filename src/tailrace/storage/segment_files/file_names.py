"""Names of a segment's files: 20 digits, and a suffix for the kind of content. Kafka's suffixes, and one of ours."""

from typing import Final

LOG_SUFFIX: Final = ".log"
INDEX_SUFFIX: Final = ".index"
TIME_INDEX_SUFFIX: Final = ".timeindex"
TRANSACTION_INDEX_SUFFIX: Final = ".txnindex"
KEY_INDEX_SUFFIX: Final = ".khx"
"""The slots of the keys of each batch. Ours: Kafka passes over the name."""
SNAPSHOT_SUFFIX: Final = ".snapshot"
"""The state of the producers when the log ended at this offset."""

_DIGITS: Final = 20
_MAX_OFFSET: Final = 2**63 - 1


def segment_name(base_offset: int) -> str:
    """The 20 digits that name a segment's files."""
    return f"{base_offset:0{_DIGITS}d}"


def offset_in_name(name: str, suffix: str) -> int | None:
    """The offset of a file with this suffix; None for any other name."""
    digits = name.removesuffix(suffix)
    is_one = len(digits) == _DIGITS and len(name) == _DIGITS + len(suffix) and digits.isascii() and digits.isdecimal()
    return int(digits) if is_one and int(digits) <= _MAX_OFFSET else None


class SegmentPaths:
    """The paths of one segment's files."""

    __slots__ = ()

    base_offset: int
    _stem: str
    _suffix: str

    @property
    def log_path(self) -> str:
        return self._stem + LOG_SUFFIX + self._suffix

    @property
    def index_paths(self) -> tuple[str, str]:
        return self._stem + INDEX_SUFFIX + self._suffix, self._stem + TIME_INDEX_SUFFIX + self._suffix

    @property
    def index_names(self) -> set[str]:
        """The names of all index files that a segment may have."""
        stem = segment_name(self.base_offset)
        suffixes = INDEX_SUFFIX, TIME_INDEX_SUFFIX, TRANSACTION_INDEX_SUFFIX, KEY_INDEX_SUFFIX
        return {stem + suffix + self._suffix for suffix in suffixes}

    @property
    def transaction_index_path(self) -> str:
        return self._stem + TRANSACTION_INDEX_SUFFIX + self._suffix

    @property
    def key_index_path(self) -> str:
        return self._stem + KEY_INDEX_SUFFIX + self._suffix
