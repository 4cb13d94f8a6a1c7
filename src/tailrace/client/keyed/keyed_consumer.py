"""A member of a group that has a handler work on the records: each key in order, many keys at a time."""

import asyncio

from tailrace.client.construction import AsyncClient, made_of
from tailrace.client.hints.call_hints import hinted
from tailrace.client.keyed.handler import Handler
from tailrace.client.keyed.keyed_engine import KeyedEngine
from tailrace.client.keyed.keyed_metrics import KeyedMetrics
from tailrace.client.keyed.keyed_run import KeyedRun
from tailrace.client.loop_thread import loop_thread
from tailrace.client.reader_settings import KeyedConsumerSettings
from tailrace.model.errors import KafkaError


@hinted
class AsyncKeyedConsumer(AsyncClient[KeyedConsumerSettings]):
    """A member of a group that works on records key by key. `run` may be called once.

    Of each partition one record of a key is with the handler at a time, in the order of offsets; keys do not wait for
    each other, and a record without a key waits for no other record. A group without committed offsets starts at the
    earliest record. Progress is committed every auto_commit_interval_ms and when partitions leave. Only done records
    are committed, so that every record reaches the handler at least once.

    `decode` makes the handler's value from the bytes of a record; if `decode` fails, the handler gets the bytes and the
    `fault`. At most `max_records_in_hand` records (16 for each lane, 1,000 at least) and `max_bytes_in_hand` are read
    and not done; the last poll may go beyond. At its end, and when partitions leave, handlers that run have `grace_ms`
    to finish. The other settings are those of `tailrace.aio.Consumer`, without enable_auto_commit.

    Reading, commits and heartbeats run on the background loop of the process (see loop_thread), and go on while a
    handler blocks the loop of `run`.
    """

    @made_of(KeyedConsumerSettings)
    def __init__(self, settings: KeyedConsumerSettings) -> None:
        self._engine = KeyedEngine(settings)

    async def run(self, handler: Handler, *, concurrency: int = 16) -> None:
        """Work on records until `stop`, with `concurrency` records at a time; then finish, commit and leave the group.

        The handler gets a `KeyedRecord` and returns None or Done, Retry or Skip. An exception is a Retry: its key
        waits, 1 s at first and then twice as long each time, up to a minute. A coroutine function runs on this loop,
        any other function in threads. A cancelled call finishes and commits too; cancelled again, it ends at once.
        Raises KafkaError for a fault that no retry cures.
        """
        loop = asyncio.get_running_loop()
        run = self._engine.start(handler, concurrency, lambda: loop)
        fault = await self._end_of(run)
        if fault is not None:
            raise fault

    async def _end_of(self, run: KeyedRun) -> BaseException | None:
        ended = asyncio.wrap_future(run.ended)
        try:
            await asyncio.wait((ended,))
        except asyncio.CancelledError:
            await self._finish(run, ended)
            raise
        return await ended

    async def _finish(self, run: KeyedRun, ended: "asyncio.Future[BaseException | None]") -> None:
        """Stop, and return at the end of the run; at once if the run is stopped already, or if this is cancelled."""
        try:
            if not self._engine.is_stopped:
                self.stop()
                await asyncio.wait((ended,))
        finally:
            run.cancel()
            await asyncio.wait((ended,))

    def stop(self) -> None:
        """End `run`: the handler gets no more records. May be called from any thread, or from a signal handler."""
        self._engine.stop()

    async def close(self) -> None:
        """Stop, and return when `run` has ended. May be called again."""
        closing = asyncio.run_coroutine_threadsafe(self._engine.close(), loop_thread().loop)
        await asyncio.wrap_future(closing)

    @property
    def trouble(self) -> KafkaError | None:
        """The fault that keeps the consumer from reading, while the fault is retried; None without a fault."""
        return self._engine.trouble

    def metrics(self) -> KeyedMetrics:
        """Numbers about this consumer now."""
        return self._engine.metrics()
