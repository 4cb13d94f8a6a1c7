"""A whole compaction of one log in one go, without an event loop."""

from typing import Final

from tailrace.storage import Compaction, Log

_STEP_BYTES: Final = 1 << 20


def compact(log: Log, now_ms: int, *, end_offset: int, memory_bytes: int = 1 << 27) -> Compaction | None:
    """Begin a compaction, make all steps and finish; None if nothing is dirty."""
    compaction = log.compactions.begin(now_ms, end_offset=end_offset, memory_bytes=memory_bytes)
    if compaction is None:
        return None
    try:
        while not compaction.is_over:
            if compaction.needs_sync:
                log.flush()
            compaction.step(_STEP_BYTES)
    finally:
        if compaction.is_over:
            log.compactions.finish(compaction)
        else:
            log.compactions.abort()
    return compaction
