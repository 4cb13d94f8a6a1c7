"""`tailrace quotas`: list, set and remove; the calls of the Admin behind the commands."""

from collections.abc import Iterator

import pytest

from testkit.nodes.admin_server import AdminServer
from testkit.programs.commands import CommandResult, Run, run_command


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Iterator[Run]:
    with AdminServer() as server:
        monkeypatch.setenv("TAILRACE_BOOTSTRAP", server.bootstrap_servers)

        def call(*words: str) -> CommandResult:
            return run_command(("quotas", *words), capsys)

        yield call


def listed(run: Run, *words: str) -> list[list[str]]:
    return [list(row.values()) for row in run("list", *words).rows]


def test_quotas_are_set_listed_and_removed(run: Run) -> None:
    done = run("set", "producer_byte_rate=1048576", "request_percentage=12.5", "--user", "alice")
    assert (done.code, len(done.rows)) == (0, 2)
    run("set", "consumer_byte_rate=1e6", "--user", "alice", "--client-id-default")
    run("set", "connection_creation_rate=5", "--ip", "10.0.0.1")
    everything = [
        ["-", "-", "10.0.0.1", "connection_creation_rate", "5.0"],
        ["alice", "-", "-", "producer_byte_rate", "1048576.0"],
        ["alice", "-", "-", "request_percentage", "12.5"],
        ["alice", "<default>", "-", "consumer_byte_rate", "1000000.0"],
    ]
    assert listed(run) == everything
    assert listed(run, "--user", "alice") == everything[1:]
    assert listed(run, "--client-id-default") == everything[3:]
    assert listed(run, "--ip-default") == []

    assert [row["QUOTA"] for row in run("remove", "producer_byte_rate", "--user", "alice").rows] == [
        "producer_byte_rate"
    ]
    assert listed(run, "--user", "alice") == everything[2:]
    assert run("remove", "--user", "alice").code == run("remove", "--ip", "10.0.0.1").code == 0
    assert listed(run) == everything[3:]


@pytest.mark.parametrize(
    ("words", "code", "text"),
    [
        (("set", "producer_byte_rate=1"), 2, "name --user, --client-id or --ip"),
        (("remove",), 2, "name --user, --client-id or --ip"),
        (("set", "producer_byte_rate=1", "--user", "a", "--user-default"), 2, "exclude each other"),
        (("set", "producer_byte_rate=fast", "--user", "a"), 2, "is not like producer_byte_rate=1048576"),
        (("set", "producer_byte_rate", "--user", "a"), 2, "is not like producer_byte_rate=1048576"),
        (("set", "producer_byte_rate=0", "--user", "a"), 1, "must be greater than 0"),
        (("set", "producer_byte_rate=1", "--ip", "10.0.0.1"), 1, "Invalid configuration key"),
    ],
)
def test_a_wrong_command_says_what_is_wrong(run: Run, words: tuple[str, ...], code: int, text: str) -> None:
    failed = run(*words)
    assert failed.code == code
    assert text in failed.err
    assert listed(run) == []
