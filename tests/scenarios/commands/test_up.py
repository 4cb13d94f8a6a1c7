"""`tailrace up`: a cluster of processes, and nothing of it left behind, however it ends."""

import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path

import pytest

from tailrace.client.blocking import Admin, NewTopic
from tailrace.node.local.reserved_ports import ReservedPorts
from tailrace.node.local.supervisor import READY
from tailrace.testing.node_process import package_path
from testkit.programs.waiting import wait_until

PATIENCE_S = 60
SAME_WISH_S = 1.0
"""A later signal has everything killed."""


class Up:
    """The command, running."""

    def __init__(self, directory: Path, *options: str) -> None:
        command = [sys.executable, "-m", "tailrace", "up", "--data-dir", str(directory), "--until-stdin-closes"]
        self.process = subprocess.Popen(
            [*command, *options],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
            env={**os.environ, "PYTHONPATH": package_path(os.environ)},
        )
        self.output: list[str] = []
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stderr is not None
        with self.process.stderr as lines:
            for line in lines:
                self.output.append(line.rstrip("\n"))

    def ready_line(self) -> str:
        """The line on stdout that is printed when the cluster is ready."""
        assert self.process.stdout is not None
        found, _, _ = select.select([self.process.stdout], [], [], PATIENCE_S)
        assert found, self.output
        return self.process.stdout.readline().rstrip("\n")

    def bootstrap_servers(self) -> str:
        line = self.ready_line()
        assert line.startswith(READY), (line, self.output)
        return line.removeprefix(READY).split()[0]

    def children(self) -> list[int]:
        """Process ids of its nodes."""
        path = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children")
        return [int(word) for word in path.read_text().split()]

    def wait_for(self, text: str) -> str:
        """The line on stderr that has this text."""
        deadline = time.monotonic() + PATIENCE_S
        while True:
            found = next((line for line in list(self.output) if text in line), None)
            if found is not None:
                return found
            assert time.monotonic() < deadline, f"never said: {text}\n" + "\n".join(self.output)
            time.sleep(0.01)

    def wait(self) -> int:
        code = self.process.wait(PATIENCE_S)
        self._reader.join(PATIENCE_S)
        return code


def wait_until_gone(process_ids: list[int]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while alive := [process_id for process_id in process_ids if _is_alive(process_id)]:
        assert time.monotonic() < deadline, f"processes {alive} live on"
        time.sleep(0.01)


def _is_alive(process_id: int) -> bool:
    try:
        state = Path(f"/proc/{process_id}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state != "Z"


@contextmanager
def running(directory: Path, *options: str) -> Iterator[Up]:
    up = Up(directory, *options)
    nodes: list[int] = []
    try:
        yield up
        nodes = up.children() if up.process.poll() is None else []
    finally:
        if up.process.poll() is None:
            os.killpg(up.process.pid, signal.SIGKILL)
        up.wait()
        if up.process.stdin is not None:
            up.process.stdin.close()
        if up.process.stdout is not None:
            up.process.stdout.close()
        wait_until_gone(nodes)


ANY_PORTS = ("--listen", "127.0.0.1:0", "--dev")


@pytest.mark.usefixtures("hangups_are_heard")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_all_nodes_answer_and_stop_with_it(tmp_path: Path, number: signal.Signals) -> None:
    with running(tmp_path, *ANY_PORTS, "--racks", "a,b,c") as up:
        line = up.ready_line()
        assert line.startswith(READY)
        assert line.endswith(" dev")
        servers = line.removeprefix(READY).split()[0]
        assert len(set(servers.split(","))) == 3
        for address in servers.split(","):
            with Admin(address) as admin:
                wait_until(lambda admin=admin: len(admin.list_brokers()) == 3, "it knows all")  # type: ignore[misc]
                brokers = admin.list_brokers()
                assert [f"{broker.host}:{broker.port}" for broker in brokers] == servers.split(",")
                assert [broker.rack for broker in brokers] == ["a", "b", "c"]
        with Admin(servers) as admin:
            admin.create_topics([NewTopic(name="led-by-all", partitions=6, replication_factor=3)])
        nodes = up.children()
        assert len(nodes) == 3
        up.process.send_signal(number)
        assert up.wait() == 0, up.output
        wait_until_gone(nodes)
        handed_over = [line for line in up.output if "nothing-handed-over" in line]
        assert len(handed_over) == 3, "each knows that all stop, so that none waits for a controller that is gone"
        assert not [line for line in up.output if "controlled-shutdown" in line]
        assert all(line.startswith(("node-1 | ", "node-2 | ", "node-3 | ")) for line in up.output)


def test_every_node_tells_the_same_active_controller(tmp_path: Path) -> None:
    """Clients get a broker that passes their requests on; administrators want the controller that decides."""
    with running(tmp_path, *ANY_PORTS) as up:
        for address in up.bootstrap_servers().split(","):
            with Admin(address) as admin:
                wait_until(lambda admin=admin: _names_its_leader(admin), f"{address} knows it")  # type: ignore[misc]


def _names_its_leader(admin: Admin) -> bool:
    brokers = admin.list_brokers()
    return [broker.node_id for broker in brokers if broker.is_controller] == [admin.describe_quorum().leader_id]


def test_one_command_brings_a_leader_soon(tmp_path: Path, record_property: Callable[[str, object], None]) -> None:
    """The time is printed, and is no verdict: nodes log the time of day, which may be set. Waiting has an end."""
    begun = datetime.now()  # noqa: DTZ005 - as the log says it
    begun_s = time.monotonic()
    with running(tmp_path, *ANY_PORTS) as up:
        up.bootstrap_servers()
        answering_s = time.monotonic() - begun_s
        line = up.wait_for("role=leader")
        logged = " ".join(line.split(" | ", 1)[1].split()[:2])
        elected_s = (datetime.strptime(logged, "%Y-%m-%d %H:%M:%S,%f") - begun).total_seconds()  # noqa: DTZ007
        figures = f"a leader after {elected_s:.2f} s, all nodes answer after {answering_s:.2f} s"
        record_property("figures", figures)
        print(figures)  # noqa: T201


def test_signals_that_come_together_are_one_wish_to_stop(tmp_path: Path) -> None:
    """`timeout` signals the process and then its group, which is the same process."""
    with running(tmp_path, *ANY_PORTS) as up:
        up.bootstrap_servers()
        nodes = up.children()
        began = time.monotonic()
        for _ in range(10):
            up.process.send_signal(signal.SIGTERM)
            time.sleep(0.005)
        code = up.wait()
        # A machine that stands still between two of them makes the later one another wish: to end at once.
        was_cut_short = "killing what still runs" in up.output and time.monotonic() - began >= SAME_WISH_S
        assert code == (1 if was_cut_short else 0), up.output
        wait_until_gone(nodes)


def test_a_later_wish_to_stop_kills_what_still_runs(tmp_path: Path) -> None:
    with running(tmp_path, *ANY_PORTS) as up:
        up.bootstrap_servers()
        nodes = up.children()
        os.kill(nodes[0], signal.SIGSTOP)
        deadline = time.monotonic() + PATIENCE_S
        while "killing what still runs" not in up.output:
            assert time.monotonic() < deadline, up.output
            up.process.send_signal(signal.SIGINT)
            time.sleep(0.1)
        assert up.wait() == 1
        wait_until_gone(nodes)


def test_a_hangup_that_nohup_has_ignored_stays_ignored(tmp_path: Path) -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)  # what a child inherits
    try:
        with running(tmp_path, *ANY_PORTS, "--brokers", "1") as up:
            signal.signal(signal.SIGHUP, before)
            servers = up.bootstrap_servers()
            for process_id in (up.process.pid, *up.children()):
                os.kill(process_id, signal.SIGHUP)
            with Admin(servers) as admin:
                admin.create_topics({"served": 1})
            up.process.terminate()
            assert up.wait() == 0
    finally:
        signal.signal(signal.SIGHUP, before)


def serves_three(admin: Admin) -> bool:
    """A broker that starts is fenced until it has caught up."""
    return [broker.is_fenced for broker in admin.list_brokers()] == [False] * 3


def test_nodes_go_on_without_a_reader_of_their_log(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tailrace", "up", "--data-dir", str(tmp_path), "--until-stdin-closes", *ANY_PORTS]
    buffered = {name: text for name, text in os.environ.items() if name not in ("PYTHONUNBUFFERED", "PYTHONPATH")}
    up = subprocess.Popen(
        [*command, "--restart"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={"PYTHONPATH": package_path(os.environ), **buffered},
    )
    with up:
        assert up.stdout is not None
        assert up.stderr is not None
        assert up.stdin is not None
        up.stderr.close()
        servers = up.stdout.readline().removeprefix(READY).split()[0]
        path = Path(f"/proc/{up.pid}/task/{up.pid}/children")
        before = path.read_text().split()
        os.kill(int(before[-1]), signal.SIGKILL)  # of which something is said
        deadline = time.monotonic() + PATIENCE_S
        while len(now := path.read_text().split()) < 3 or now == before:
            assert up.poll() is None, "it ended"
            assert time.monotonic() < deadline
            time.sleep(0.01)
        assert now[:2] == before[:2], "the others went on"
        for address in servers.split(","):
            with Admin(address, bootstrap_timeout_ms=1_000 * PATIENCE_S) as admin:
                wait_until(lambda admin=admin: serves_three(admin), "all serve again")  # type: ignore[misc]
        up.terminate()
        assert up.wait(PATIENCE_S) == 0


def test_no_node_survives_kill_9(tmp_path: Path) -> None:
    with running(tmp_path, *ANY_PORTS, "--brokers", "2") as up:
        up.bootstrap_servers()
        nodes = up.children()
        assert len(nodes) == 2
        up.process.kill()
        up.wait()
        wait_until_gone(nodes)


def test_a_dead_node_is_reported_and_its_command_starts_it_again(tmp_path: Path) -> None:
    with running(tmp_path, *ANY_PORTS) as up:
        servers = up.bootstrap_servers()
        os.kill(up.children()[1], signal.SIGKILL)
        line = up.wait_for("was ended by SIGKILL")
        name, _, command = line.partition(" was ended by SIGKILL; start it again with: tailrace ")
        assert len(up.children()) == 2
        again = subprocess.Popen(
            [sys.executable, "-m", "tailrace", *command.split(), "--until-stdin-closes"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": package_path(os.environ)},
        )
        with again:
            assert again.stdout is not None
            assert again.stdout.readline().startswith(READY + servers.split(",")[int(name[-1]) - 1])
            again.terminate()
        up.process.terminate()
        assert up.wait() == 1, "a node had died"


def test_a_node_is_restarted_where_that_is_asked_for(tmp_path: Path) -> None:
    with running(tmp_path, *ANY_PORTS, "--restart") as up:
        up.bootstrap_servers()
        for _ in range(2):
            os.kill(up.children()[-1], signal.SIGKILL)
            up.wait_for("is back")
            up.output.clear()
        assert len(up.children()) == 3
        up.process.terminate()
        assert up.wait() == 0


def test_a_second_start_finds_what_the_first_one_left(tmp_path: Path) -> None:
    with running(tmp_path, *ANY_PORTS, "--brokers", "2") as up:
        servers = up.bootstrap_servers()
        with Admin(servers) as admin:
            admin.create_topics({"kept": 2})
        up.process.terminate()
        assert up.wait() == 0
    with ReservedPorts() as ports:
        for address in servers.split(","):
            host, _, port = address.rpartition(":")
            ports.reserve(host, int(port))
        with running(tmp_path) as up:
            assert up.bootstrap_servers() == servers
            with Admin(servers) as admin:
                assert "kept" in {topic.name for topic in admin.list_topics()}


def test_controllers_may_be_nodes_of_their_own(tmp_path: Path) -> None:
    with running(tmp_path, *ANY_PORTS, "--brokers", "1", "--controllers", "3") as up:
        (address,) = up.bootstrap_servers().split(",")
        assert len(up.children()) == 4
        with Admin(address) as admin:
            assert [broker.node_id for broker in admin.list_brokers()] == [1]
            assert [voter.replica_id for voter in admin.describe_quorum().voters] == [2, 3, 4]
        up.process.terminate()
        assert up.wait() == 0


def test_a_node_that_cannot_start_stops_the_others_and_is_named(tmp_path: Path) -> None:
    (tmp_path / "node-2").mkdir()
    (tmp_path / "node-2" / "data").write_text("not a directory")
    with running(tmp_path, *ANY_PORTS) as up:
        assert up.wait() == 1
        assert any("node-2 ended with exit code 1 before the cluster was ready" in line for line in up.output)


@pytest.mark.parametrize(
    ("options", "why"),
    [
        (("--brokers", "0"), "0 brokers"),
        ((*ANY_PORTS, "--set", "no.such=1"), "no.such"),
        (("--listen", "nowhere"), "--listen"),
        (("--listen", "0.0.0.0:9092"), "insecure"),
        ((*ANY_PORTS, "--set", "node.id=3"), "node.id differs"),
    ],
)
def test_an_impossible_option_is_refused_before_any_node_starts(
    tmp_path: Path, options: tuple[str, ...], why: str
) -> None:
    with running(tmp_path, *options) as up:
        assert up.wait() in (1, 2)
        assert why in "\n".join(up.output)
        assert not list(tmp_path.iterdir())
