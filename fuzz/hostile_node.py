"""Mutations of valid frames, thousands of every API, against a node that is a process of its own.

Beside them a control client goes on with its work (`fuzz.control_client`). The promises: every round trip of this
client succeeds, the node lives, no handler failed, and the node's memory grows by less than 64 MiB. Times of the round
trips are reported, and judged only if the caller gives a limit: on a busy machine they prove nothing.
"""

import re
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import NamedTuple

from fuzz import golden
from fuzz.control_client import ControlClient
from fuzz.examples import examples
from fuzz.mutation import Mutator
from tailrace.model.errors import KafkaError
from tailrace.protocol.declaration import Field
from tailrace.protocol.headers import encode_request
from tailrace.protocol.registry import CLIENT_APIS, Api
from tailrace.protocol.request_headers import decode_request_header
from tailrace.protocol.schema import decode_from
from tailrace.testing.cluster import Cluster

MOST_GROWTH_MIB = 64
TOPIC = "orders"
_FRAMES_PER_CONNECTION = 48
"""Fewer than the node takes in before it waits for its own answers."""
_LONGEST_WAIT_SECONDS = 30
_QUIET_SECONDS = 3
_KNOWN = {
    "name": TOPIC,
    "topic": TOPIC,
    "group_id": "group",
    "transactional_id": None,
    "replica_id": -1,
    "session_id": 0,
    "session_epoch": 0,
    "max_bytes": 10_000,
    "partition_max_bytes": 10_000,
}
"""Values of a client in fields where any other value is refused at once."""
_RESET = struct.pack("ii", 1, 0)


class Verdict(NamedTuple):
    """The result of an attack."""

    summary: str
    faults: list[str]


class Trips(NamedTuple):
    """The control client's round trips while one API was attacked, in ms."""

    api: str
    milliseconds: list[float]

    def __str__(self) -> str:
        worst = sorted(self.milliseconds)
        if not worst:
            return f"{self.api:28} no round trip"
        p99 = worst[min(len(worst) - 1, len(worst) * 99 // 100)]
        middle = worst[len(worst) // 2]
        times = f"median {middle:6.1f} p99 {p99:6.1f} max {worst[-1]:6.1f} ms"
        return f"{self.api:28} {len(worst):6,} round trips, {times}"


def attack_node(
    mutations: int, seed: int, *, say: Callable[[str], object] = lambda _: None, longest_trip_ms: float | None = None
) -> Verdict:
    """Send so many mutations of every API; `say` gets a line for each API when the API is done."""
    began = time.monotonic()
    trips: list[Trips] = []
    faults: list[str] = []
    growth = 0.0
    log = ""
    with Cluster() as cluster:
        host, port = cluster.bootstrap_servers.split(":")
        topic_id = _create_topic(host, int(port))
        control = _Control(host, int(port))
        if longest_trip_ms is not None:
            longest_trip_ms = _judged_ms(control, longest_trip_ms, say)
        try:
            before = memory_mib(cluster.process_id())
            for api in CLIENT_APIS.values():
                _attack((host, int(port)), api, topic_id, mutations, Random(f"{seed} {api.name}"))
                trips.append(Trips(api.name, control.trips_so_far()))
                say(str(trips[-1]))
            growth = memory_mib(cluster.process_id()) - before
        except OSError as fault:
            faults.append(f"the node does not answer any more: {fault}")
        finally:
            complaint = control.stop()
        log = cluster.log_text()
        faults += _faults(complaint, growth, log, trips, longest_trip_ms)
    summary = f"{mutations * len(trips):,} mutations of {len(trips)} APIs in {time.monotonic() - began:.0f} s; "
    summary += f"memory grew by {growth:.0f} MiB; {_stalls_in(log)}"
    return Verdict(f"{summary}\n{_all_of(trips)}", faults)


def _judged_ms(control: "_Control", longest_trip_ms: float, say: Callable[[str], object]) -> float | None:
    """The longest round trip that is allowed; None if trips take half as long already without an attack."""
    time.sleep(_QUIET_SECONDS)
    quiet = Trips("before the attack", control.trips_so_far())
    say(str(quiet))
    if quiet.milliseconds and max(quiet.milliseconds) <= longest_trip_ms / 2:
        return longest_trip_ms
    say("This machine is too busy to judge round trips; they are only reported.")
    return None


def _stalls_in(log: str) -> str:
    """The stalls that the node itself logs; it logs a few of many."""
    stalls = [int(number) for number in re.findall(r"event=event-loop-stall milliseconds=(\d+)", log)]
    return f"{len(stalls)} stalls logged, the longest of {max(stalls)} ms" if stalls else "no stall logged"


def _all_of(trips: Sequence[Trips]) -> str:
    every = [trip for each in trips for trip in each.milliseconds]
    return f"{Trips('all', every)}; {sum(trip > 100 for trip in every)} over 100 ms"


def _create_topic(host: str, port: int) -> bytes:
    client = ControlClient(host, port)
    try:
        return client.create_topic(TOPIC, partitions=3)
    finally:
        client.close()


def _faults(
    complaint: str, growth: float, log: str, trips: Sequence[Trips], longest_trip_ms: float | None
) -> Iterator[str]:
    if complaint:
        yield f"the honest client was hurt: {complaint}"
    if growth > MOST_GROWTH_MIB:
        yield f"the node's memory grew by {growth:.0f} MiB"
    if "Traceback" in log or " ERROR " in log:
        at = max(log.find("Traceback"), log.find(" ERROR "))
        yield f"the node logged a fault of its own:\n{log[max(0, at - 300) : at + 3_000]}"
    for each in trips:
        if not each.milliseconds:
            yield f"{each.api}: the honest client got no answer"
        elif longest_trip_ms is not None and max(each.milliseconds) > longest_trip_ms:
            yield f"{each.api}: a round trip took {max(each.milliseconds):.0f} ms"


class _Control:
    """The honest client's process and its output."""

    def __init__(self, host: str, port: int) -> None:
        command = [sys.executable, "-m", "fuzz.control_client", host, str(port)]
        self._process = subprocess.Popen(
            command,
            cwd=Path(__file__).parents[1],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self._trips: list[float] = []
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._first = threading.Event()
        self._reader.start()
        self._first.wait(_LONGEST_WAIT_SECONDS)

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._trips.append(float(line))
            self._first.set()

    @property
    def has_ended(self) -> bool:
        return self._process.poll() is not None

    def trips_so_far(self) -> list[float]:
        """The round trips since the last call, and at least one trip: the call waits for the client."""
        deadline = time.monotonic() + _LONGEST_WAIT_SECONDS
        while not self._trips and not self.has_ended and time.monotonic() < deadline:
            time.sleep(0.005)
        trips, self._trips = self._trips, []
        return trips

    def stop(self) -> str:
        """The complaint of the client; empty if the client has no complaint."""
        assert self._process.stdin is not None
        with suppress(OSError):
            self._process.stdin.close()
        try:
            self._process.wait(_LONGEST_WAIT_SECONDS + 5)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._reader.join()
        assert self._process.stdout is not None
        assert self._process.stderr is not None
        with self._process.stdout, self._process.stderr:
            return self._process.stderr.read() if self._process.returncode else ""


def memory_mib(process_id: int) -> float:
    """The resident memory of the process (VmRSS)."""
    for line in Path(f"/proc/{process_id}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) / 1024
    raise AssertionError("a running process has a VmRSS")


def frames_of(api: Api, topic_id: bytes) -> Iterator[bytes]:
    """Valid requests of every version, without a length prefix: captured requests, and ours about things that exist."""
    yield from golden.client_frames(api.name)
    known = {**_KNOWN, "topic_id": topic_id}

    def better_in(version: int) -> Callable[[Field], tuple[object] | None]:
        def better(field: Field) -> tuple[object] | None:
            value = known.get(field.name, ...)
            is_possible = value is not ... and (value is not None or field.nullable.has(version))
            return (value,) if is_possible else None

        return better

    for version in range(api.min_version, api.max_version + 1):
        for value in examples(api.request, version, better_in(version)):
            yield b"".join(encode_request(value, version, 5, "hostile"))


def _attack(address: tuple[str, int], api: Api, topic_id: bytes, mutations: int, random: Random) -> None:
    mutator = Mutator(list(frames_of(api, topic_id)), random)
    pending: list[bytes] = []
    for _ in range(mutations):
        body = mutator.next()
        pending.append(body)
        if len(pending) == _FRAMES_PER_CONNECTION or not _is_legible(body):
            _send(address, pending, random)
            pending = []
    _send(address, pending, random)


def _is_legible(body: bytes) -> bool:
    """Whether the node will take further requests behind this request."""
    try:
        header, position = decode_request_header(body)
        api = CLIENT_APIS.get(header.api_key)
        if api is None or not api.serves(header.api_version):
            return False
        decode_from(api.request, header.api_version, body, position)
    except KafkaError:
        return False
    return True


def _send(address: tuple[str, int], bodies: Sequence[bytes], random: Random) -> None:
    """Send the bodies on one connection; now and then (1 in 100) the last body lies about its length."""
    if not bodies:
        return
    stream = bytearray()
    for body in bodies:
        stream += struct.pack(">i", len(body)) + body
    if not random.randrange(100):
        last = len(stream) - len(bodies[-1]) - 4
        struct.pack_into(">i", stream, last, random.choice((-1, 0, 7, 8, 2**31 - 1, len(bodies[-1]) + 1)))
    with socket.create_connection(address, timeout=_LONGEST_WAIT_SECONDS) as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
        with suppress(ConnectionError):
            client.sendall(stream)
            client.shutdown(socket.SHUT_WR)
            while client.recv(1 << 16):
                pass


__all__ = ("MOST_GROWTH_MIB", "Trips", "Verdict", "attack_node", "frames_of", "memory_mib")
