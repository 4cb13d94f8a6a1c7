"""A node of two brokers for commands, and the commands that run against the node."""

from collections.abc import Iterator

import pytest

from testkit.nodes.admin_server import AdminServer
from testkit.programs.commands import CommandResult, Run, run_command


@pytest.fixture
def server() -> Iterator[AdminServer]:
    with AdminServer() as server:
        yield server


@pytest.fixture
def run(server: AdminServer, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Run:
    monkeypatch.setenv("TAILRACE_BOOTSTRAP", server.bootstrap_servers)

    def call(*words: str) -> CommandResult:
        return run_command(words, capsys)

    return call
