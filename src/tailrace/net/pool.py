"""Outgoing connections, one per address and use, opened when needed and again after a pause when lost."""

import asyncio
from dataclasses import dataclass, field

from tailrace.model.errors import ErrorCode, KafkaError
from tailrace.net.connection import Address, Connection, connect
from tailrace.net.sasl import SaslConfig
from tailrace.net.tls import TlsContexts


@dataclass(slots=True)
class _Slot:
    """A place for a connection. The lock makes concurrent callers share one attempt and its failure."""

    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    connection: Connection | None = None
    fault: KafkaError | None = None
    """The failure of the last attempt."""
    failures: int = 0
    not_before: float = 0.0


class ConnectionPool:
    """Connections by address and use.

    A use keeps long waits apart: a heartbeat must not wait behind a fetch that takes half a second, since answers come
    in order. After a failed attempt the next attempt at that address waits, `backoff_ms` at first and twice as long
    each time, at most `backoff_max_ms`.
    """

    def __init__(
        self,
        *,
        client_id: str,
        connect_timeout_ms: int = 10_000,
        backoff_ms: int = 50,
        backoff_max_ms: int = 1_000,
        tls: TlsContexts | None = None,
        sasl: SaslConfig | None = None,
    ) -> None:
        """`tls`: for encrypted connections."""
        self._tls = tls
        self._client_id = client_id
        self._connect_timeout_ms = connect_timeout_ms
        self._backoff_ms = backoff_ms
        self._backoff_max_ms = backoff_max_ms
        self._sasl = sasl
        self._slots: dict[tuple[Address, str], _Slot] = {}
        self._closed = False

    def open_connection(self, address: Address, use: str = "") -> Connection | None:
        """The working connection to this address for this use; None if there is no working connection."""
        slot = self._slots.get((address, use))
        if slot is None or slot.connection is None or not slot.connection.is_open:
            return None
        return slot.connection

    async def get(self, address: Address, use: str = "") -> Connection:
        """An open connection. Raises KafkaError(NETWORK_EXCEPTION) if it cannot be opened now."""
        ready = self.open_connection(address, use)
        if ready is not None:
            return ready
        slot = self._slots.setdefault((address, use), _Slot())
        failures = slot.failures
        async with slot.lock:
            ready = self.open_connection(address, use)
            if ready is not None:
                return ready
            if slot.fault is not None and slot.failures > failures:
                raise type(slot.fault)(slot.fault.code, slot.fault.detail)
            return await self._connect(slot, address)

    async def _connect(self, slot: _Slot, address: Address) -> Connection:
        loop = asyncio.get_running_loop()
        await asyncio.sleep(max(0.0, slot.not_before - loop.time()))
        self._check_open()
        try:
            connection = await connect(
                address,
                client_id=self._client_id,
                timeout_ms=self._connect_timeout_ms,
                tls=self._tls,
                sasl=self._sasl,
            )
        except KafkaError as fault:
            slot.fault = fault
            pause_ms = min(self._backoff_ms << min(slot.failures, 10), self._backoff_max_ms)
            slot.failures += 1
            slot.not_before = loop.time() + pause_ms / 1000
            raise
        slot.failures = 0
        slot.connection = connection
        if self._closed:
            connection.close()
        self._check_open()
        return connection

    def _check_open(self) -> None:
        if self._closed:
            raise KafkaError(ErrorCode.NETWORK_EXCEPTION, "this client is closed")

    def close(self) -> None:
        """Close every connection; pending requests fail."""
        self._closed = True
        for slot in self._slots.values():
            if slot.connection is not None:
                slot.connection.close()
