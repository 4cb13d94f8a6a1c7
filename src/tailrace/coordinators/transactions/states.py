"""States of a transaction, and their transitions. Numbers and names are Kafka's: of the log, and of clients."""

from collections.abc import Mapping
from enum import IntEnum
from types import MappingProxyType


class TransactionState(IntEnum):
    """As it stands in the log."""

    EMPTY = 0
    ONGOING = 1
    PREPARE_COMMIT = 2
    """Decided: it will be committed, and its markers are being written."""
    PREPARE_ABORT = 3
    COMPLETE_COMMIT = 4
    COMPLETE_ABORT = 5
    DEAD = 6
    """Kafka's coordinators have it in memory while a transactional id expires; it is in no log."""
    PREPARE_EPOCH_FENCE = 7
    """Kafka's coordinators have it in memory while a producer is fenced; it is in no log."""

    @property
    def label(self) -> str:
        """`PrepareCommit`, as clients show it."""
        return "".join(word.capitalize() for word in self.name.split("_"))

    @property
    def is_prepared(self) -> bool:
        """The end is decided, and not all markers are written."""
        return self in (TransactionState.PREPARE_COMMIT, TransactionState.PREPARE_ABORT)

    @property
    def is_idle(self) -> bool:
        """No transaction is open."""
        return self in (TransactionState.EMPTY, TransactionState.COMPLETE_COMMIT, TransactionState.COMPLETE_ABORT)


_S = TransactionState

TRANSITIONS: Mapping[TransactionState, frozenset[TransactionState]] = MappingProxyType(
    {
        # A new instance of a producer, or one that has lost its sequence numbers.
        _S.EMPTY: frozenset((_S.EMPTY, _S.ONGOING, _S.PREPARE_ABORT)),
        _S.ONGOING: frozenset((_S.ONGOING, _S.PREPARE_COMMIT, _S.PREPARE_ABORT)),
        _S.PREPARE_COMMIT: frozenset((_S.COMPLETE_COMMIT,)),
        _S.PREPARE_ABORT: frozenset((_S.COMPLETE_ABORT,)),
        # To abort what never began is how a producer of KIP-890 makes sure of that.
        _S.COMPLETE_COMMIT: frozenset((_S.EMPTY, _S.ONGOING, _S.PREPARE_ABORT)),
        _S.COMPLETE_ABORT: frozenset((_S.EMPTY, _S.ONGOING, _S.PREPARE_ABORT)),
    }
)
"""From each state that can be in a log, those that may follow; any of EMPTY, COMPLETE_* may also be forgotten."""
