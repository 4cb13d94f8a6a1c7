"""The ids and epochs of fetch sessions (KIP-227)."""

from typing import Final

NO_SESSION: Final = 0
"""The session id of a fetch that has no session yet, and of an answer without a session."""
INITIAL_EPOCH: Final = 0
"""The epoch of a full fetch that asks for a new session, and closes the session that it names."""
FINAL_EPOCH: Final = -1
"""The epoch of a full fetch that asks for no session, and closes the session that it names."""
FULL_EPOCHS: Final = (INITIAL_EPOCH, FINAL_EPOCH)
"""A fetch of these epochs names every partition; a fetch of another epoch names differences."""
MAX_EPOCH: Final = (1 << 31) - 1


def next_epoch(epoch: int) -> int:
    """The epoch of the fetch that follows one of this epoch: 1 again after the largest int32."""
    if epoch == FINAL_EPOCH:
        return FINAL_EPOCH
    return 1 if epoch == MAX_EPOCH else epoch + 1


def is_full(epoch: int) -> bool:
    """Whether a fetch of this epoch names every partition; a fetch of another epoch names differences."""
    return epoch in FULL_EPOCHS
