"""A group of members in processes of their own that share a topic of one partition by key, and their ledgers."""

import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from benchmarks.loads.slot_member import Ledger
from benchmarks.peers.peer import Peer

SLOTS: Final = 64
_MOST_S: Final = 120
_STOP_S: Final = 90


class SlotGroup:
    """The members of one group. Use it as a context manager: the end kills the members that are left."""

    def __init__(self, peer: Peer, topic: str, group: str, *, lanes: int) -> None:
        self._peer = peer
        self._topic = topic
        self._group = group
        self._lanes = lanes
        self._stack = ExitStack()
        self._directory: Path
        self._members: dict[str, subprocess.Popen[str]] = {}

    def __enter__(self) -> "SlotGroup":
        self._directory = Path(self._stack.enter_context(TemporaryDirectory(prefix="tailrace-bench-")))
        return self

    def __exit__(self, *_: object) -> None:
        for process in self._members.values():
            process.kill()
            process.wait()
        self._stack.close()

    def start(self, *names: str) -> None:
        """Start members."""
        for name in names:
            command = [sys.executable, "-m", "benchmarks.loads.slot_member", self._peer.address, self._topic]
            command += [self._group, str(SLOTS), str(self._lanes), str(self._directory / f"{name}.ledger")]
            self._members[name] = subprocess.Popen(command, text=True, stderr=subprocess.PIPE)

    def wait_for_slots(self, *names: str) -> None:
        """Return when these members have all slots, in equal parts."""
        share = SLOTS // len(names)
        self.wait_until(
            lambda ledger: all(len(ledger.slots_of(name)) in (share, share + 1) for name in names), "equal parts"
        )

    def wait_until(self, holds: Callable[[Ledger], bool], what: str) -> Ledger:
        """The ledgers, as soon as this holds for them."""
        deadline = time.monotonic() + _MOST_S
        while not holds(ledger := self.ledger()):
            for name, process in self._members.items():
                if process.poll():
                    assert process.stderr is not None, "stderr is a pipe"
                    raise RuntimeError(f"member {name} has ended: {process.stderr.read()}")
            if time.monotonic() > deadline:
                raise RuntimeError(f"{what}: not within {_MOST_S} s")
            time.sleep(0.3)
        return ledger

    def ledger(self) -> Ledger:
        """The ledgers so far."""
        return Ledger.read(self._directory)

    def stop(self, *names: str) -> None:
        """Stop members in an orderly way, and wait for their ends."""
        for name in names:
            self._members[name].send_signal(signal.SIGTERM)
        for name in names:
            process = self._members.pop(name)
            _, errors = process.communicate(timeout=_STOP_S)
            if process.returncode:
                raise RuntimeError(f"member {name}: {errors}")

    def stop_all(self) -> Ledger:
        """Stop all members; returns their whole ledgers."""
        self.stop(*self._members)
        return self.ledger()


@contextmanager
def one_partition(peer: Peer, topic: str) -> Iterator[str]:
    """A topic of one partition, as long as the block takes."""
    peer.create_topics({topic: 1})
    peer.wait_for_leaders({topic: 1})
    yield topic
    peer.delete_topics({topic: 1})
