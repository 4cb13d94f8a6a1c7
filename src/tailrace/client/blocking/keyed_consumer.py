"""The keyed consumer without asyncio: `run` blocks, and its handler runs in threads."""

from concurrent.futures import CancelledError
from functools import partial

from tailrace.client.construction import made_of
from tailrace.client.facade import Facade, face_of
from tailrace.client.keyed.handler import Handler
from tailrace.client.keyed.keyed_consumer import AsyncKeyedConsumer
from tailrace.client.keyed.keyed_engine import KeyedEngine
from tailrace.client.keyed.keyed_metrics import KeyedMetrics
from tailrace.client.loop_thread import handler_thread, loop_thread
from tailrace.client.reader_settings import KeyedConsumerSettings
from tailrace.model.errors import KafkaError


@face_of(AsyncKeyedConsumer)
class KeyedConsumer(Facade[KeyedEngine]):
    """See `tailrace.client.keyed.keyed_consumer.AsyncKeyedConsumer`, whose settings it takes."""

    @made_of(KeyedConsumerSettings)
    def __init__(self, settings: KeyedConsumerSettings) -> None:
        super().__init__(partial(KeyedEngine, settings))
        self._is_stopped = False

    def run(self, handler: Handler, *, concurrency: int = 16) -> None:
        """Work on records until `stop` is called: in the handler, in another thread, or in a signal handler.

        The handler runs in as many threads as there is concurrency; a coroutine function runs on a loop in the thread
        `tailrace-handlers`, which the coroutine handlers of this process share. An interrupted call (Ctrl-C) lets
        running handlers finish, and commits; a second interrupt ends the call at once. For the rest see
        `AsyncKeyedConsumer.run`.
        """
        engine = self._client.get()
        if self._is_stopped:
            engine.stop()
        run = engine.start(handler, concurrency, lambda: handler_thread().loop)
        try:
            end = run.ended.result()
        except BaseException as fault:
            if isinstance(fault, CancelledError) and loop_thread().is_stopped:
                return  # the interpreter ends, and this is a daemon thread: an exception would print a traceback
            if not run.ended.done():
                self.stop()
                try:
                    run.ended.result()
                finally:
                    run.cancel()
            raise
        if end is not None:
            raise end

    def stop(self) -> None:
        """End `run`, also a later call: it begins no more records, finishes the records that run, and commits.

        May be called from any thread, or from a signal handler.
        """
        self._is_stopped = True
        engine = self._client.existing()  # without an engine `run` finds the flag; takes no lock, for signal handlers
        if engine is not None:
            engine.stop()

    @property
    def trouble(self) -> KafkaError | None:
        """The fault that keeps the consumer from reading, while the fault is retried; None without a fault."""
        return self._client.get().trouble

    def metrics(self) -> KeyedMetrics:
        """Numbers about this consumer now."""
        return self._client.get().metrics()
