"""Applies the metadata of this broker: at the start a few milliseconds at a time, then change by change.

A broker that was killed opens thousands of logs when it comes back. Meanwhile it goes on to vote and to say that it
lives; what changes in the metadata waits until it has carried out what was there before.
"""

import asyncio
from collections.abc import Callable, Sequence

from tailrace.metadata.image import ClusterImage, ImageDelta
from tailrace.net.turns import Turns
from tailrace.node.clock import LoopClock
from tailrace.server.quorum.controller import OnImage, QuorumController, tell_each
from tailrace.server.replicas.metadata_applier import MetadataApplier
from tailrace.server.slices import run_slice


class Duties:
    """Everything on a broker that acts on the metadata."""

    def __init__(self, metadata: QuorumController, *, applier: MetadataApplier, turns: Turns) -> None:
        self._metadata = metadata
        self._applier = applier
        self._turns = turns
        self._others: Sequence[OnImage] = ()
        self._waiting: list[tuple[ClusterImage, ImageDelta]] | None = []

    async def begin(self, load: Callable[[ClusterImage], None], others: Sequence[OnImage]) -> None:
        """Carry out the image as it is now and go on with its changes; return when nothing is left to be done.

        `load` is called when the partitions have their roles; `others` get changes after the partitions.
        """
        self._others = others
        clock = LoopClock(asyncio.get_running_loop(), self._turns)
        image = self._metadata.image
        self._metadata.on_image(self._on_image)
        steps = self._applier.steps(image)
        is_done = False

        def carry_out_slice() -> None:
            nonlocal is_done
            is_done = run_slice(steps, clock)

        while not is_done:
            self._turns.run(carry_out_slice)
            await asyncio.sleep(0)
        self._turns.run(lambda: self._catch_up(image, load))

    def _catch_up(self, image: ClusterImage, load: Callable[[ClusterImage], None]) -> None:
        load(image)
        waiting, self._waiting = self._waiting or [], None
        for change in waiting:
            self._act(*change)

    def _on_image(self, image: ClusterImage, delta: ImageDelta) -> None:
        if self._waiting is not None:
            self._waiting.append((image, delta))
        else:
            self._act(image, delta)

    def _act(self, image: ClusterImage, delta: ImageDelta) -> None:
        tell_each((self._applier.on_image, *self._others), image, delta)
