"""The class of replica.selector.class: what a node makes of it when it starts, and when it stops."""

import logging
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from tailrace.model.errors import ErrorCode, KafkaError
from tailrace.model.settings import SettingType
from tailrace.node.selector_class import close_selector, load_selector
from tailrace.node.settings.config import NodeConfig
from tailrace.node.settings.table import BROKER_SETTINGS
from tailrace.replication.replica_selector import LeaderSelector, RackAwareReplicaSelector, ReplicaSelector
from tailrace.testing.node_process import package_path

NAME = "replica.selector.class"
PLUGIN = '''
import sys
from pathlib import Path
from tailrace import PartitionView, ReplicaSelector

class Good(ReplicaSelector):
    def __init__(self):
        self.configs = None
    def configure(self, configs):
        self.configs = dict(configs)
        self.log = Path(__file__).with_suffix(".log")
        self.log.write_text("configured")
    def select(self, topic_partition, client, partition):
        return max(partition.replicas)
    def close(self):
        self.log.write_text(self.log.read_text() + " closed")

class Plain:
    """As `Good`, without a word of ours."""
    def configure(self, configs): pass
    def select(self, topic_partition, client, partition): return partition.leader
    def close(self): raise RuntimeError("not now")

class NoSelect:
    def configure(self, configs): pass
    def close(self): pass

class OnlyAbstract(ReplicaSelector):
    pass

class Refusing(Plain):
    def configure(self, configs):
        raise ValueError("the rack map is missing")

class Exits(Plain):
    def configure(self, configs): sys.exit(0)
    def close(self): sys.exit(0)

class Wants(Plain):
    def __init__(self, something): pass

a_function = lambda: Plain()
'''


@pytest.fixture
def plugin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The path of a user's module `selector_of_users`, which can be imported."""
    path = tmp_path / "selector_of_users.py"
    path.write_text(PLUGIN)
    (tmp_path / "broken_of_users.py").write_text("import a_module_that_is_not_there")
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "exiting_of_users.py").write_text("import sys; sys.exit('not here')")
    for name in ("selector_of_users", "broken_of_users", "exiting_of_users"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    return path


def load(text: str | None) -> ReplicaSelector:
    return load_selector(NodeConfig({} if text is None else {NAME: text}))


@pytest.mark.parametrize(
    "text",
    [None, "", "  ", "LeaderSelector", "tailrace:LeaderSelector", "org.apache.kafka.common.replica.LeaderSelector"],
)
def test_the_leader_selector_is_the_default(text: str | None) -> None:
    assert type(load(text)) is LeaderSelector


@pytest.mark.parametrize(
    "text",
    [
        "RackAwareReplicaSelector",
        "tailrace:RackAwareReplicaSelector",
        "org.apache.kafka.common.replica.RackAwareReplicaSelector",
    ],
)
def test_kafkas_names_are_accepted(text: str) -> None:
    assert type(load(text)) is RackAwareReplicaSelector


@pytest.mark.usefixtures("plugin")
def test_a_class_of_users_is_configured_with_the_settings_of_the_node() -> None:
    good = load("selector_of_users:Good")
    configs: Mapping[str, object] = good.configs  # type: ignore[attr-defined]
    assert configs[NAME] == "selector_of_users:Good"
    assert configs["node.id"] == 1


@pytest.mark.usefixtures("plugin")
def test_a_class_of_users_needs_not_inherit() -> None:
    assert type(load("selector_of_users:Plain")).__name__ == "Plain"


@pytest.mark.usefixtures("plugin")
@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("selector_of_users", "say package.module:Class"),
        (":Good", "say package.module:Class"),
        ("selector_of_users:", "say package.module:Class"),
        ("com.example.Selector", "say package.module:Class"),
        ("no_module_of_users:Good", "import of no_module_of_users raised ModuleNotFoundError"),
        ("broken_of_users:Good", "a_module_that_is_not_there"),
        ("selector_of_users:Absent", "has no class Absent"),
        ("selector_of_users:a_function", "has no class a_function"),
        ("selector_of_users:NoSelect", "no method select"),
        ("selector_of_users:OnlyAbstract", "its constructor raised TypeError"),
        ("selector_of_users:Wants", "its constructor raised TypeError"),
        ("selector_of_users:Refusing", "configure raised ValueError: the rack map is missing"),
        ("selector_of_users:Exits", "configure raised SystemExit: 0"),
        ("exiting_of_users:Good", "import of exiting_of_users raised SystemExit: not here"),
    ],
)
def test_a_class_that_cannot_be_used_is_refused_with_the_reason(text: str, why: str) -> None:
    with pytest.raises(KafkaError, match=why) as refused:
        load(text)
    assert refused.value.code is ErrorCode.INVALID_CONFIG
    assert refused.value.detail.startswith(f"{NAME}={text}: ")


@pytest.mark.usefixtures("plugin")
def test_a_close_that_fails_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        close_selector(load("selector_of_users:Plain"))
        close_selector(sys.modules["selector_of_users"].Exits())
    assert "event=replica-selector-not-closed class=Plain" in caplog.text
    assert "event=replica-selector-not-closed class=Exits" in caplog.text


def test_the_setting_is_static_and_names_a_class() -> None:
    setting = BROKER_SETTINGS[NAME]
    assert (setting.type, setting.default, setting.dynamic) == (SettingType.CLASS, None, False)


@pytest.fixture
def serve(tmp_path: Path, plugin: Path) -> Callable[[str], "subprocess.Popen[str]"]:
    def start(text: str) -> "subprocess.Popen[str]":
        words = ("serve", "--until-stdin-closes", "--listen", "127.0.0.1:0", "--data-dir", str(tmp_path / "data"))
        path = os.pathsep.join((str(plugin.parent), package_path(os.environ)))
        return subprocess.Popen(
            [sys.executable, "-m", "tailrace", *words, "--set", f"{NAME}={text}"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": path},
        )

    return start


def test_a_node_configures_the_class_when_it_starts_and_closes_it_when_it_stops(
    plugin: Path, serve: Callable[[str], "subprocess.Popen[str]"]
) -> None:
    with serve("selector_of_users:Good") as process:
        assert process.stdout is not None
        assert process.stdout.readline().startswith("tailrace ready")
        assert plugin.with_suffix(".log").read_text() == "configured"
        process.send_signal(signal.SIGTERM)
        _, errors = process.communicate(timeout=60)
    assert process.returncode == 0, errors
    assert plugin.with_suffix(".log").read_text() == "configured closed"


def test_a_node_whose_class_cannot_be_used_does_not_start(serve: Callable[[str], "subprocess.Popen[str]"]) -> None:
    with serve("selector_of_users:Refusing") as process:
        output, errors = process.communicate(timeout=60)
    assert (process.returncode, output) == (1, "")
    assert f"{NAME}=selector_of_users:Refusing: configure raised ValueError: the rack map is missing" in errors
    assert "Traceback" not in errors
