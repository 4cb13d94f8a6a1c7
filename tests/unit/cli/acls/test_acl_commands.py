"""`tailrace acls`, with a node that has the authorizer and with a node that has none."""

from collections.abc import Iterator

import pytest

from testkit.nodes.admin_server import AdminServer
from testkit.programs.commands import CommandResult, Run, run_command

SECURED = {"authorizer.class.name": "StandardAuthorizer", "super.users": "User:ANONYMOUS"}


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Iterator[Run]:
    with AdminServer(SECURED) as server:
        monkeypatch.setenv("TAILRACE_BOOTSTRAP", server.bootstrap_servers)

        def call(*words: str) -> CommandResult:
            return run_command(("acls", *words), capsys)

        yield call


ALICE = ("--principal", "User:alice")


def names(result: CommandResult) -> list[tuple[str, str, str]]:
    return [(row["NAME"], row["OPERATION"], row["PERMISSION"]) for row in result.rows]


def test_rules_are_added_listed_and_removed(run: Run) -> None:
    added = run("add", *ALICE, "--operation", "read", "--operation", "DescribeConfigs", "--topic", "orders")
    assert (added.code, added.err) == (0, "added 2 rules\n")
    run("add", *ALICE, "--operation", "ALL", "--group", "my-", "--prefixed", "--host", "10.0.0.1")
    run("add", "--principal", "User:*", "--operation", "WRITE", "--topic", "*", "--deny")
    run("add", *ALICE, "--operation", "CREATE", "--cluster")

    rows = run("list").rows
    assert [list(row.values()) for row in rows] == [
        ["TOPIC", "*", "LITERAL", "User:*", "*", "WRITE", "DENY"],
        ["TOPIC", "orders", "LITERAL", "User:alice", "*", "READ", "ALLOW"],
        ["TOPIC", "orders", "LITERAL", "User:alice", "*", "DESCRIBE_CONFIGS", "ALLOW"],
        ["GROUP", "my-", "PREFIXED", "User:alice", "10.0.0.1", "ALL", "ALLOW"],
        ["CLUSTER", "kafka-cluster", "LITERAL", "User:alice", "*", "CREATE", "ALLOW"],
    ]
    assert names(run("list", "--group", "my-group")) == []
    assert names(run("list", "--group", "my-group", "--matching")) == [("my-", "ALL", "ALLOW")]
    assert len(run("list", *ALICE).rows) == 4

    removed = run("remove", *ALICE, "--topic", "orders")
    assert names(removed) == [("orders", "READ", "ALLOW"), ("orders", "DESCRIBE_CONFIGS", "ALLOW")]
    assert removed.err == "removed 2 rules\n"
    assert run("remove", "--all").err == "removed 3 rules\n"
    assert run("list").rows == []


def test_a_check_names_the_deciding_rule(run: Run) -> None:
    def check(operation: str, *resource: str) -> tuple[int, str, str]:
        result = run("check", *ALICE, "--operation", operation, *resource)
        (row,) = result.rows
        return result.code, row["DECISION"], row["NAME"]

    assert check("READ", "--topic", "orders")[:2] == (1, "DENIED")
    run("add", *ALICE, "--operation", "READ", "--topic", "ord", "--prefixed")
    assert check("DESCRIBE", "--topic", "orders") == (0, "ALLOWED", "ord")
    run("add", "--principal", "User:*", "--operation", "READ", "--topic", "*", "--deny")
    assert check("READ", "--topic", "orders") == (1, "DENIED", "*")
    assert check("DESCRIBE", "--topic", "orders") == (0, "ALLOWED", "ord")


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (("add", *ALICE, "--topic", "orders"), "name a --principal, an --operation and a resource"),
        (("add", *ALICE, "--operation", "READ"), "name a --principal, an --operation and a resource"),
        (("add", *ALICE, "--operation", "FLY", "--topic", "orders"), "'FLY' is not an operation; ALL, READ"),
        (("add", *ALICE, "--operation", "READ", "--cluster"), "READ is no operation on CLUSTER"),
        (("remove",), "say --all"),
        (("check", *ALICE, "--operation", "READ"), "name a resource"),
    ],
)
def test_a_command_that_says_too_little_is_refused(run: Run, words: tuple[str, ...], text: str) -> None:
    result = run(*words)
    assert result.code == 2
    assert text in " ".join(result.err.replace("│", " ").split())


def test_a_principal_has_a_type(run: Run) -> None:
    result = run("add", "--principal", "alice", "--operation", "READ", "--topic", "orders")
    assert result.code == 1
    assert "no colon is present" in result.err


def test_a_cluster_without_an_authorizer_has_no_rules(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with AdminServer() as server:
        monkeypatch.setenv("TAILRACE_BOOTSTRAP", server.bootstrap_servers)
        result = run_command(("acls", "list"), capsys)
    assert (result.code, "No Authorizer is configured" in result.err) == (1, True)
