"""Python's garbage collector, kept out of the way of work that makes many objects which stay.

Loading metadata, or acting on the loss of a broker, makes hundreds of thousands of objects without a cycle among them.
The collector would look through all of them again and again, for up to half a second at a time.
"""

import gc


class Collector:
    """The collector of this process, paused while long work is under way."""

    def __init__(self) -> None:
        self._works = 0

    def long_work(self, has_begun: bool) -> None:
        """Long work begins, or is over: then what it has made is never looked through again."""
        if has_begun:
            self._works += 1
            gc.disable()
            return
        self._works -= 1
        if self._works == 0:
            gc.freeze()
            gc.enable()
