"""The future of one record, light enough to make one for each of a hundred thousand records per second."""

import os
import threading
from concurrent.futures import Future
from typing import Any

from tailrace.client.outgoing import RecordMetadata

_making = threading.Lock()
"""Held only while a future decides whether somebody waits for it already."""


def _renew_lock() -> None:
    global _making
    _making = threading.Lock()  # the loop thread of the parent may have held it


os.register_at_fork(after_in_child=_renew_lock)

_LAZY = ("_condition", "_waiters", "_done_callbacks")


class DeliveryFuture(Future[RecordMetadata]):
    """A concurrent future that makes its lock and lists when somebody first waits for it or adds a callback.

    Most futures of records are never waited for, and an ordinary one consists of eight objects that Python's garbage
    collector walks again and again: half of a producer's time. It is running from the start, so it cannot be cancelled.
    """

    _state = "RUNNING"
    _result = None
    _exception = None

    def __init__(self) -> None:
        """Nothing yet: see the class."""

    def __getattr__(self, name: str) -> Any:
        if name not in _LAZY:
            raise AttributeError(name)
        with _making:
            if "_condition" not in self.__dict__:
                self._waiters: list[Any] = []
                self._done_callbacks: list[Any] = []
                self._condition = threading.Condition()
        return self.__dict__[name]

    def done(self) -> bool:
        return self._state == "FINISHED"

    def set_result(self, result: RecordMetadata) -> None:
        with _making:
            if "_condition" not in self.__dict__:
                self._result = result
                self._state = "FINISHED"
                return
        super().set_result(result)
