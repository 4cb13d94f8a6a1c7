"""Networks of racks that can be cut: a namespace per rack, or where there can be none, proxies in front of each node.

Namespaces have one address each, and all are plugged into one switch:

    this machine ---- switch ---- rack 1: 10.x.y.1
    10.x.y.254          +-------- rack 2: 10.x.y.2

A broker and the clients of its rack run in the namespace (`command`). A cut is silent, as one of a cable is: packets go
to an address of the link layer that nothing has, or the rack is unplugged from the switch. Nothing has a name, so
nothing is left over: a namespace is held by a process that ends with this one's pipe.
"""

import os
import random
import shutil
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from typing import Protocol

from tailrace.node.local.cluster import LocalNode

_NOWHERE = "02:00:00:00:00:ff"
_MACHINE = 254
_LOOPBACK = "127.0.0.1"
_VOTERS = "controller.quorum.voters"
_ATTEMPTS = 20


class NoNetwork(Exception):
    """There can be no such network here; the message says why."""


class RackNetwork(Protocol):
    """Racks, numbered from 1 on, and the ways between them. This machine, where tests run, is in none of them."""

    @property
    def racks(self) -> Sequence[int]: ...

    def command(self, rack: int, command: Sequence[str]) -> list[str]:
        """The same command, to run in this rack."""
        ...

    def settings_of(self, node: LocalNode) -> Mapping[str, str]:
        """The settings with which a node stands in the rack of its number."""
        ...

    def cut(self, rack: int, others: Iterable[int] | None = None) -> None:
        """Cut the ways between this rack and other racks, by default all; this machine still reaches every rack."""
        ...

    def cut_one_way(self, rack: int) -> None:
        """Lose all that this rack sends to other racks; what they send arrives."""
        ...

    def unplug(self, rack: int) -> None:
        """Cut the rack off from everything, this machine too."""
        ...

    def heal(self) -> None:
        """End all cuts."""
        ...

    def close(self) -> None:
        """Remove the network. Processes in racks must have ended."""
        ...


class NamespaceNetwork:
    """The switch and its racks."""

    def __init__(self, racks: int) -> None:
        """Raises NoNetwork."""
        self._racks = range(1, racks + 1)
        self._holders: dict[int, subprocess.Popen[bytes]] = {}
        """By rack; 0 is the switch."""
        self._subnet = ""
        self._stack = ExitStack()
        try:
            self._build()
        except BaseException:
            self.close()
            raise

    @property
    def racks(self) -> Sequence[int]:
        return self._racks

    def close(self) -> None:
        self._stack.close()

    def _build(self) -> None:
        if not sys.platform.startswith("linux"):
            raise NoNetwork("namespaces of the network are Linux's")
        if missing := [program for program in ("ip", "unshare", "nsenter") if shutil.which(program) is None]:
            raise NoNetwork(f"there is no program {', '.join(missing)}")
        for number in (0, *self._racks):
            self._holders[number] = self._hold()
        self._run(0, "link add switch type bridge", "link set switch up")
        self._plug_this_machine_in()
        for rack in self._racks:
            rack_process = self._holders[rack].pid
            self._run(
                0,
                f"link add rack{rack} type veth peer name eth0 netns {rack_process}",
                f"link set rack{rack} master switch up",
            )
            self._run(rack, "link set lo up", f"addr add {self.address(rack)}/24 dev eth0", "link set eth0 up")

    def _hold(self) -> "subprocess.Popen[bytes]":
        """A process in a new namespace, until its stdin is closed."""
        holder = subprocess.Popen(
            ["unshare", "--net", "sh", "-c", "echo && exec cat"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        self._stack.callback(_end, holder)
        assert holder.stdout is not None
        assert holder.stderr is not None
        if not holder.stdout.readline():
            raise NoNetwork(f"no namespace: {holder.stderr.read().decode().strip()}; run as root")
        return holder

    def _plug_this_machine_in(self) -> None:
        """With a subnet that nothing else here uses."""
        link = f"racks{os.getpid()}"
        self._run(
            None, f"link add {link} type veth peer name machine netns {self._holders[0].pid}", f"link set {link} up"
        )
        self._stack.callback(self._run, None, f"link del {link}")  # at once: namespaces vanish some time later
        for _ in range(_ATTEMPTS):
            self._subnet = f"10.{random.randrange(64, 224)}.{random.randrange(256)}"
            taken = subprocess.run(["ip", "-brief", "addr"], capture_output=True, text=True, check=True).stdout
            if f" {self._subnet}." not in taken:
                break
        self._run(None, f"addr add {self.address(_MACHINE)}/24 dev {link}")
        self._run(0, "link set machine master switch up")

    def _run(self, place: int | None, *commands: str) -> None:
        """Commands of `ip`, in a rack, in the switch (0) or here (None). Raises NoNetwork."""
        words = [] if place is None else self._enter(place)
        text = "\n".join(commands) + "\n"
        done = subprocess.run([*words, "ip", "-batch", "-"], input=text, capture_output=True, text=True, check=False)
        if done.returncode:
            raise NoNetwork(f"ip {'; '.join(commands)}: {done.stderr.strip()}")

    def _enter(self, place: int) -> list[str]:
        return ["nsenter", f"--net=/proc/{self._holders[place].pid}/ns/net"]

    def address(self, rack: int) -> str:
        """The address of everything in this rack."""
        return f"{self._subnet}.{rack}"

    def settings_of(self, node: LocalNode) -> Mapping[str, str]:
        voters = node.settings[_VOTERS]
        for rack in self._racks:
            voters = voters.replace(f"{rack}@{_LOOPBACK}", f"{rack}@{self.address(rack)}")
        return {
            **node.settings,
            "listeners": node.settings["listeners"].replace(_LOOPBACK, self.address(node.node_id)),
            _VOTERS: voters,
            "listener.insecure.allow": "true",
        }

    def command(self, rack: int, command: Sequence[str]) -> list[str]:
        return [*self._enter(rack), *command]

    # faults

    def cut(self, rack: int, others: Iterable[int] | None = None) -> None:
        for other in self._others(rack, others):
            self._lose(rack, other)
            self._lose(other, rack)

    def cut_one_way(self, rack: int) -> None:
        for other in self._others(rack, None):
            self._lose(rack, other)

    def unplug(self, rack: int) -> None:
        self._run(0, f"link set rack{rack} nomaster")

    def heal(self) -> None:
        for rack in self._racks:
            self._run(0, f"link set rack{rack} master switch")
            self._run(rack, "neigh flush nud permanent dev eth0")

    def _others(self, rack: int, others: Iterable[int] | None) -> list[int]:
        return [other for other in (self._racks if others is None else others) if other != rack]

    def _lose(self, source: int, target: int) -> None:
        self._run(source, f"neigh replace {self.address(target)} lladdr {_NOWHERE} nud permanent dev eth0")


def _end(holder: "subprocess.Popen[bytes]") -> None:
    with holder:
        pass
