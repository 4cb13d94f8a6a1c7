"""What the blocking clients share: an asyncio client behind each, made in the process that uses it."""

import os
import threading
import weakref
from collections.abc import Callable
from types import TracebackType
from typing import Any, Generic, Protocol, Self, TypeVar

from tailrace.client.loop_thread import loop_thread
from tailrace.model.errors import ErrorCode, KafkaError


class Closable(Protocol):
    async def close(self) -> None: ...


C = TypeVar("C", bound=Closable)


class PerProcess(Generic[C]):
    """An asyncio client, made on the loop of the process that uses it."""

    def __init__(self, make: Callable[[], C]) -> None:
        self._make = make
        self._process_id = 0
        self._client: C | None = None
        self._lock = threading.Lock()
        self._is_closed = False
        _all.add(self)

    def renew_lock(self) -> None:
        """In a child made by a fork: a thread of the parent may have held the lock."""
        self._lock = threading.Lock()

    def made(self) -> C | None:
        """This process's client, if it has been used here and is not closed."""
        return self._client if self._process_id == os.getpid() else None

    def get(self) -> C:
        """This process's client. Raises KafkaError(NETWORK_EXCEPTION) after `close`."""
        client = self._client
        if client is not None and self._process_id == os.getpid():
            return client
        with self._lock:
            if self._is_closed:
                raise KafkaError(ErrorCode.NETWORK_EXCEPTION, "this client is closed")
            if self._client is None or self._process_id != os.getpid():
                self._client = loop_thread().call(self._made())
                self._process_id = os.getpid()
            return self._client

    async def _made(self) -> C:
        return self._make()

    def close(self) -> None:
        """Close this process's client, if it has one. May be called again."""
        with self._lock:
            self._is_closed = True
            client, self._client = self.made(), None
        if client is not None:
            loop_thread().call(client.close())


_all: "weakref.WeakSet[PerProcess[Any]]" = weakref.WeakSet()


def _renew_locks() -> None:
    for each in list(_all):
        each.renew_lock()


os.register_at_fork(after_in_child=_renew_locks)


class Facade(Generic[C]):
    """A blocking client: usable in a `with` block."""

    def __init__(self, make: Callable[[], C]) -> None:
        self._client = PerProcess(make)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, fault: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Finish and close the connections."""
        self._client.close()
