"""Those who act on changes of the metadata: each hears of every change, whatever becomes of the others.

The change is committed, and nothing that one of them meets undoes it. So a fault of theirs, be it one partition's log
that has failed, is logged and ends there; a broken invariant ends the node, as everywhere.
"""

import logging
from collections.abc import Callable, Iterable

from tailrace.metadata.image import ClusterImage, ImageDelta

OnImage = Callable[[ClusterImage, ImageDelta], None]

_logger = logging.getLogger("tailrace.server")


def tell_each(listeners: Iterable[OnImage], image: ClusterImage, delta: ImageDelta) -> None:
    """Have each of them act on a change, one after the other."""
    for listener in listeners:
        try:
            listener(image, delta)
        except AssertionError:
            raise
        except Exception:
            _logger.exception("event=metadata-listener-failed listener=%r", listener)
