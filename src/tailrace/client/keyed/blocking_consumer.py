"""The keyed consumer without asyncio: `run` blocks, and its handler runs in threads."""

import asyncio
from functools import partial

from tailrace.client.construction import made_of
from tailrace.client.keyed.handler import Handler
from tailrace.client.keyed.keyed_consumer import AsyncKeyedConsumer
from tailrace.client.keyed.keyed_metrics import KeyedMetrics
from tailrace.client.loop_thread import Facade, loop_thread
from tailrace.client.settings import KeyedConsumerSettings
from tailrace.model.errors import KafkaError


class KeyedConsumer(Facade[AsyncKeyedConsumer]):
    """See `tailrace.client.keyed.keyed_consumer.AsyncKeyedConsumer`, whose settings it takes."""

    @made_of(KeyedConsumerSettings)
    def __init__(self, settings: KeyedConsumerSettings) -> None:
        super().__init__(partial(AsyncKeyedConsumer.of, settings))
        self._is_stopped = False

    def run(self, handler: Handler, *, concurrency: int = 16) -> None:
        """Work on records until `stop` is called: in the handler, in another thread, or in a signal handler.

        The handler runs in as many threads as there is concurrency; a coroutine function runs on this process's
        background loop. An interrupted call (Ctrl-C) lets running handlers finish, and commits; a second interrupt ends
        the call at once. For the rest see `AsyncKeyedConsumer.run`.
        """
        client, loop = self._client.get(), loop_thread().loop
        if self._is_stopped:
            loop.call_soon_threadsafe(client.stop)
        future = asyncio.run_coroutine_threadsafe(_ran(client, handler, concurrency), loop)
        try:
            end = future.result()
        except BaseException:
            if not future.done():
                self.stop()
                try:
                    future.result()
                finally:
                    future.cancel()
            raise
        if end is not None:
            raise end

    def stop(self) -> None:
        """End `run`, also a later call: it begins no more records, finishes the records that run, and commits.

        May be called from any thread, or from a signal handler.
        """
        self._is_stopped = True
        client = self._client.existing()  # without a client `run` finds the flag; takes no lock, for signal handlers
        if client is not None:
            loop_thread().loop.call_soon_threadsafe(client.stop)

    @property
    def trouble(self) -> KafkaError | None:
        """The fault that keeps the consumer from reading, while the fault is retried; None without a fault."""
        return self._client.get().trouble

    def metrics(self) -> KeyedMetrics:
        """Numbers about this consumer now."""
        return loop_thread().call(_keyed_metrics(self._client.get()))


async def _ran(client: AsyncKeyedConsumer, handler: Handler, concurrency: int) -> BaseException | None:
    """Run the client. Returns the exception with which the handler ends the program: raised on the loop, the exception
    would end the loop, which all clients of the process use."""
    try:
        await client.run(handler, concurrency=concurrency)
    except (SystemExit, KeyboardInterrupt) as end:
        return end
    return None


async def _keyed_metrics(client: AsyncKeyedConsumer) -> KeyedMetrics:
    """The metrics, taken on the loop: the loop changes the state that they count."""
    return client.metrics()
