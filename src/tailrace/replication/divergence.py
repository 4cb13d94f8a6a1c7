"""The offset at which a follower's log is cut when it parts from its leader's, and whether it may be. Pure."""

from tailrace.model.partitions import OffsetAndEpoch
from tailrace.storage.epoch_cache import EpochCache


def may_cut(offset: int, *, high_watermark: int, agreed_epoch: int, unclean_epoch: int) -> bool:
    """Whether a replica may cut its log here if its leader's log diverges.

    All below its own high watermark is committed. Only an unclean election may have lost it, and only one after
    the last epoch in which this log was its leader's: `agreed_epoch`. `unclean_epoch` is that of the last such
    election, -1 if there was none. Without one it is the leader that has lost something.
    """
    return offset >= high_watermark or unclean_epoch > agreed_epoch


def cut_offset(epochs: EpochCache, log_end_offset: int, diverging: OffsetAndEpoch) -> int:
    """The offset at which a log that diverges from its leader's is cut; it may have to be asked again then (KIP-279).

    `diverging` is the end of the largest epoch that the leader has at or below the follower's last one. If the follower
    has that epoch too, the logs are the same up to the smaller end. If not, all of its later epochs go, and the next
    fetch tells the epoch before them.
    """
    own = epochs.end_offset_for(diverging.epoch, log_end_offset=log_end_offset)
    if own.epoch == diverging.epoch:
        return min(diverging.offset, own.offset, log_end_offset)
    if own.offset >= 0:
        return min(own.offset, log_end_offset)
    return min(diverging.offset, log_end_offset)
