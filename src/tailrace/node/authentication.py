"""The gates of a node's listeners with SASL (`server.authentication.gate`), on the real clock, and the thread that
checks passwords: PBKDF2 takes milliseconds, which the event loop does not have."""

import secrets
import threading
from collections import OrderedDict, deque
from collections.abc import Callable
from importlib import import_module
from random import random
from typing import Final, NamedTuple

from tailrace.metadata.image import ClusterImage
from tailrace.model.security.scram import ScramCredential
from tailrace.net.inbound import InboundConnection
from tailrace.net.listener import Listener
from tailrace.node.event_loop import LoopClock
from tailrace.node.settings.sasl import NodeSasl
from tailrace.server.audit import NO_AUDIT, Audit
from tailrace.server.authentication.credentials import NodeUser, UserCredentials
from tailrace.server.authentication.exchanges import exchange_of
from tailrace.server.authentication.gate import Gate, GateServices

MOST_WAITING: Final = 1_000
"""The most checks of all addresses that wait. A further check fails at once, or the last check of the address with the
most checks fails in its place."""


class _Check(NamedTuple):
    credential: ScramCredential
    password: bytes
    on_done: Callable[[bool], None]


class PasswordThread:
    """A `server.authentication.gate.PasswordChecks`. The thread begins with the first check.

    An address has one check at a time; its further checks wait behind checks of other addresses. So a client that sends
    many passwords delays itself.
    """

    def __init__(self, post: Callable[[Callable[[], None]], None]) -> None:
        """`post` runs a callback on the event loop, called from the thread."""
        self._post = post
        self._waiting: OrderedDict[str, deque[_Check]] = OrderedDict()
        """The checks by address, in the order of their turns."""
        self._count = 0
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        self._is_stopped = False

    def check(
        self, address: str, credential: ScramCredential, password: bytes, on_done: Callable[[bool], None]
    ) -> None:
        """Call `on_done` on the event loop with the outcome; with False if too many checks wait (`MOST_WAITING`)."""
        with self._changed:
            if self._is_stopped or (self._count >= MOST_WAITING and not self._make_room(address)):
                self._post(lambda: on_done(False))
                return
            self._count += 1
            self._waiting.setdefault(address, deque()).append(_Check(credential, password, on_done))
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="tailrace-passwords", daemon=True)
                self._thread.start()
            self._changed.notify()

    def _make_room(self, address: str) -> bool:
        """Fail the last check of the address with the most checks that wait. False: this address has the most."""
        busiest = max(self._waiting, key=lambda waiting: len(self._waiting[waiting]))
        checks = self._waiting[busiest]
        if len(checks) <= len(self._waiting.get(address, ())) + 1:
            return False
        self._count -= 1
        on_done = checks.pop().on_done
        self._post(lambda: on_done(False))
        return True

    def stop(self) -> None:
        """Drop the checks that wait, and end the thread."""
        with self._changed:
            self._is_stopped = True
            self._waiting.clear()
            self._changed.notify()
        if self._thread is not None:
            self._thread.join()

    def _run(self) -> None:
        while (check := self._next()) is not None:
            is_right = check.credential.proves(check.password)
            self._report(check.on_done, is_right)

    def _report(self, on_done: Callable[[bool], None], is_right: bool) -> None:
        if not self._is_stopped:
            self._post(lambda: on_done(is_right))

    def _next(self) -> _Check | None:
        with self._changed:
            while not self._waiting:
                if self._is_stopped:
                    return None
                self._changed.wait()
            address, checks = self._waiting.popitem(last=False)
            check = checks.popleft()
            if checks:
                self._waiting[address] = checks
            self._count -= 1
            return None if self._is_stopped else check


class NodeAuthentication:
    """Makes the gates; `stop` ends the thread of passwords."""

    def __init__(
        self, sasl: NodeSasl, *, image: Callable[[], ClusterImage | None], clock: LoopClock, audit: Audit = NO_AUDIT
    ) -> None:
        """`image` returns None before the node has a replica of the metadata log."""
        user = sasl.user
        credentials = UserCredentials(
            image,
            random_bytes=secrets.token_bytes,
            node_user=None
            if user is None
            else NodeUser(
                name=user.username,
                password=user.password.reveal(),
                second_password=None if sasl.second_password is None else sasl.second_password.reveal(),
            ),
        )
        self._passwords = PasswordThread(clock.post)
        self._offer = {name: exchange_of(name, credentials) for name in sasl.mechanisms}
        self._services = GateServices(clock, self._passwords, random, audit)
        self._limits = sasl.limits

    def guard(self, listener: Listener) -> Gate:
        """The gate of this listener, which has accepted no connection yet."""
        import_module("scramp")  # now, since it takes 50 ms: the first client would stall the event loop

        def serve(connection: InboundConnection, slot: int, frame: memoryview) -> None:
            listener.on_frame(connection, slot, frame)  # the listener may get another dispatcher

        gate = Gate(
            self._offer,
            serve=serve,
            services=self._services,
            limits=self._limits,
        )
        listener.on_accept = gate.admit
        return gate

    def stop(self) -> None:
        """End the thread. Gates refuse every password from now on."""
        self._passwords.stop()
