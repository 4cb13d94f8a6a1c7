"""Settings of a node: their sources, the order among these, and values that refuse the start."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from tailrace.model.errors import ErrorCode, KafkaError
from tailrace.node.settings.config import NodeConfig, load_config
from tailrace.node.settings.environment import without_settings
from tailrace.node.settings.listeners import parse_endpoint
from tailrace.node.settings.properties import parse_properties
from tailrace.node.settings.sources import read_environment
from tailrace.node.settings.table import BROKER_SETTINGS, DEV_DEFAULTS
from tailrace.server.admin.config_entries import BROKER_NAMES, ConfigSource


def loaded(
    *,
    file: Path | None = None,
    overrides: Sequence[str] = (),
    environment: Mapping[str, str] = {},
    flags: Mapping[str, str] = {},
) -> NodeConfig:
    """The settings from these sources; the others are empty."""
    return load_config(file=file, overrides=overrides, environment=environment, flags=flags)


def refusal(**sources: Any) -> str:
    with pytest.raises(KafkaError) as caught:
        loaded(**sources)
    assert caught.value.code is ErrorCode.INVALID_CONFIG
    return caught.value.detail


def test_every_default_is_legal() -> None:
    for setting in BROKER_SETTINGS.values():
        text = setting.format(setting.default)
        if text is not None:
            assert setting.parse(text) == setting.default, setting.name
        assert setting.doc
    assert NodeConfig({}).node_id == 1


def test_a_former_name_is_taken_from_every_source_in_the_order_of_sources(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    former, current = "group.key.sharing.enable", "group.key.ranges.enable"
    file = tmp_path / "server.properties"
    file.write_text(f"{former}=false\n")
    assert not loaded(file=file).flag(current)
    assert f"name={former} instead={current}" in caplog.text
    assert not loaded(environment={"TAILRACE_GROUP_KEY_SHARING_ENABLE": "false"}).flag(current)
    assert loaded(file=file, overrides=[f"{current}=true"]).flag(current)
    assert loaded(file=file, overrides=[f"{former}=true"]).flag(current)
    file.write_text(f"{former}=false\n{current}=true\n")
    assert f"{current} is there twice, once under a former name" in refusal(file=file)


def test_every_topic_setting_has_its_broker_names() -> None:
    for names in BROKER_NAMES.values():
        assert set(names) <= set(BROKER_SETTINGS)


def test_the_command_line_wins_over_the_environment_and_that_over_the_file(tmp_path: Path) -> None:
    file = tmp_path / "server.properties"
    file.write_text("node.id=2\nnum.partitions=3\nlog.segment.bytes=2048\nmin.insync.replicas = 2\n")
    config = loaded(
        file=file,
        environment={"TAILRACE_NUM_PARTITIONS": "5", "TAILRACE_NODE_ID": "7", "PATH": "/bin"},
        flags={"log.dirs": "/data"},
        overrides=["node.id=9"],
    )
    assert config.node_id == 9
    assert config.integer("num.partitions") == 5
    assert config.topic_defaults.segment_bytes == 2048
    assert config.topic_defaults.min_insync_replicas == 2
    assert config.data_directory == Path("/data")


def test_an_unknown_name_refuses_the_start_and_offers_the_nearest(tmp_path: Path) -> None:
    assert "did you mean log.retention.ms?" in refusal(overrides=["log.retension.ms=5"])
    for variable, near in (("NODE_IDD", "NODE_ID"), ("LISTENER", "LISTENERS"), ("LOG_RETENTON_MS", "LOG_RETENTION_MS")):
        message = refusal(environment={f"TAILRACE_{variable}": "5"})
        assert message.startswith(f"unknown environment variable TAILRACE_{variable}; did you mean TAILRACE_{near}?")


@pytest.mark.parametrize(
    "variable",
    [
        "SERVICE_HOST",
        "SERVICE_PORT",
        "SERVICE_PORT_KAFKA",
        "PORT",
        "PORT_9092_TCP",
        "PORT_9092_TCP_ADDR",
        "PORT_9092_TCP_PORT",
        "PORT_9092_TCP_PROTO",
        "PORT_53_UDP_ADDR",
        "METRICS_SERVICE_HOST",
        "LOG_DIR_SERVICE_HOST",
        "NODE_ID_PORT",
        "SSL_CLIENT_SERVICE_PORT",
        "PORT_9092_TCP_PORT_START",
        "PORT_9092_TCP_END",
        "NAME",
        "ENV_PATH",
    ],
)
def test_variables_of_a_service_of_this_name_are_ignored(variable: str, caplog: pytest.LogCaptureFixture) -> None:
    environment = {f"TAILRACE_{variable}": "tcp://10.0.0.1:9092", "TAILRACE_NODE_ID": "5"}
    assert read_environment(environment) == {"node.id": "5"}
    assert not caplog.records


def test_variables_of_the_users_own_are_ignored_with_one_line(caplog: pytest.LogCaptureFixture) -> None:
    own = {f"TAILRACE_{name}": "1" for name in ("VERSION", "BOOTSTRAP_SERVERS", "HOME", "NODE_IP", "SASL_PASSWORD")}
    assert read_environment({**own, "TAILRACE_NODE_ID": "5"}) == {"node.id": "5"}
    (record,) = caplog.records
    assert record.getMessage().startswith("event=environment-ignored variables=TAILRACE_BOOTSTRAP_SERVERS,")


def test_a_variable_without_a_text_is_not_set(caplog: pytest.LogCaptureFixture) -> None:
    """Docker Compose passes `${UNSET}` so."""
    empty = dict.fromkeys(
        ("NODE_ID", "LISTENERS", "DEV_MODE", "PROCESS_ROLES", "PORT", "NODE_IDD", "SSL_KEY_PASSWORD"), ""
    )
    assert read_environment({f"TAILRACE_{name}": text for name, text in empty.items()}) == {}
    assert read_environment({"TAILRACE_NODE_ID": " "}) == {}
    assert not caplog.records


def test_a_port_that_is_no_address_of_a_service_is_a_users_own(caplog: pytest.LogCaptureFixture) -> None:
    assert read_environment({"TAILRACE_PORT": "9092", "TAILRACE_SERVICE_PORT": "9092"}) == {}
    assert "variables=TAILRACE_PORT reason=" in caplog.text


@pytest.mark.parametrize("variable", ["TAILRACE_node_id", "tailrace_node_id", "Tailrace_Node_Id", "tailrace_node_idd"])
def test_a_setting_in_another_case_is_refused_with_its_name(variable: str) -> None:
    assert f"{variable}; did you mean TAILRACE_NODE_ID?" in refusal(environment={variable: "5"})


def test_a_setting_of_the_environment_by_which_kafka_protects_a_node_is_refused() -> None:
    for variable in ("SSL_PROVIDER_NAME", "SASL_OAUTHBEARER_JWKS_ENDPOINT_URL"):
        assert "Leave it out" in refusal(environment={f"TAILRACE_{variable}": "x"})


@pytest.mark.parametrize(
    "name",
    [
        "ssl.provider",
        "sasl.oauthbearer.jwks.endpoint.url",
        "security.inter.broker.protocol",
        "listener.name.internal.sasl.enabled.mechanisms",
        "create.topic.policy.class.name",
    ],
)
def test_a_setting_by_which_kafka_protects_a_node_refuses_the_start(name: str, tmp_path: Path) -> None:
    """A node that took the setting would look protected, and be open to every client that reaches the node."""
    file = tmp_path / "server.properties"
    file.write_text(f"{name}=anything\n")
    for message in (refusal(file=file), refusal(overrides=[f"{name}=anything"])):
        assert f"{name}: in Kafka this " in message
        assert "Leave it out" in message


def test_kafkas_settings_that_protect_nothing_are_accepted_without_effect(tmp_path: Path) -> None:
    file = tmp_path / "server.properties"
    file.write_text("num.replica.fetchers=4\nauto.leader.rebalance.enable=false\nquota.window.num=5\n")
    config = loaded(file=file)
    assert config.integer("num.replica.fetchers") == 4
    assert "must be a whole number" in refusal(overrides=["num.replica.fetchers=many"])


def test_variables_that_other_parts_read_are_not_taken_for_settings() -> None:
    others = {
        "TAILRACE_BOOTSTRAP": "localhost:9092",
        "TAILRACE_SPARK_TASKS": "4",
        "TAILRACE_TRACEBACK": "1",
        "TAILRACE_KEY": "k",
    }
    assert read_environment({**others, "TAILRACE_NODE_ID": "5"}) == {"node.id": "5"}
    assert without_settings({**others, "TAILRACE_NODE_ID": "5", "tailrace_node_id": "5"}) == others


def test_a_file_is_refused_with_its_name_and_all_its_faults_at_once(tmp_path: Path) -> None:
    file = tmp_path / "server.properties"
    file.write_text("num.partition=3\nnode.id=one\nlog.dirs=/data\nbroker.id=7\n")
    assert refusal(file=file) == (
        f"{file}: unknown setting 'num.partition'; did you mean num.partitions?;"
        " node.id='one': must be a whole number;"
        " unknown setting 'broker.id'; it is called node.id now"
    )
    assert refusal(environment={"TAILRACE_NODE_ID": "one"}) == "environment: node.id='one': must be a whole number"


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    assert refusal(file=tmp_path / "none") == f"cannot read {tmp_path / 'none'}: No such file or directory"
    binary = tmp_path / "binary"
    binary.write_bytes(b"\xff\xfe")
    assert refusal(file=binary) == f"cannot read {binary}: it is not UTF-8 text"


@pytest.mark.parametrize("name", ["SSL", "SASL_SSL"])
def test_a_listener_that_is_named_after_a_secure_protocol_is_never_an_open_one(name: str) -> None:
    why = {"SSL": "a listener with TLS needs a certificate", "SASL_SSL": "sasl.jaas.config: "}[name]
    assert why in refusal(overrides=[f"listeners={name}://127.0.0.1:0"])
    loaded(overrides=[f"listeners={name}://127.0.0.1:0", f"listener.security.protocol.map={name}:PLAINTEXT"])


@pytest.mark.parametrize(
    ("override", "expected"),
    [
        ("num.partitions=0", "num.partitions='0': must be between 1 and"),
        ("num.partitions=many", "num.partitions='many': must be a whole number"),
        ("log.durability=maybe", "must be one of flushed, page-cache"),
        ("auto.create.topics.enable=1", "say true or false"),
        ("process.roles=broker", "a broker has to know its controllers"),
        ("process.roles=king", "must be one of broker, controller"),
        ("log.dirs=/a,/b", "one node per disk"),
        ("listeners=127.0.0.1", "say NAME://HOST:PORT or HOST:PORT"),
        ("listeners=127.0.0.1:70000", "listeners='127.0.0.1:70000': port 70000 is above 65535"),
        ("listeners=127.0.0.1:" + "9" * 50, "is above 65535"),
        ("listeners=::1:9092", "an IPv6 address stands in brackets"),
        ("listeners=", "at least one address is needed"),
        ("listeners=127.0.0.1:1,127.0.0.1:2", "each needs a name of its own"),
        ("advertised.listeners=OTHER://localhost:1", "there is no listener of this name"),
        ("advertised.listeners=PLAINTEXT://0.0.0.0:1", "clients cannot connect to a wildcard"),
        ("listener.security.protocol.map=PLAINTEXT:SASL_SSL", "sasl.jaas.config: "),
        ("group.min.session.timeout.ms=1800001", "is above group.max.session.timeout.ms"),
        ("socket.request.max.bytes=262144001", "must be between"),
        ("message.max.bytes=104857601", "raise socket.request.max.bytes"),
        ("socket.request.max.bytes=1048576 ", "message.max.bytes=1048588: no request can carry such a batch"),
        ("node.id", "say name=value"),
        ("log.dir=", "a node needs a directory"),
        ("advertised.listeners=nowhere", "advertised.listeners='nowhere': say NAME://HOST:PORT or HOST:PORT"),
        ("advertised.listeners=localhost:1,127.0.0.1:1", "each listener has one advertised address"),
        ("broker.heartbeat.interval.ms=2500", "say less than broker.session.timeout.ms=2500"),
        ("group.consumer.heartbeat.interval.ms=45000", "say less than group.consumer.session.timeout.ms=45000"),
        ("replica.fetch.wait.max.ms=30001", "say at most replica.socket.timeout.ms=30000"),
        ("replica.lag.time.max.ms=499", "replica.fetch.wait.max.ms=500: say at most replica.lag.time.max.ms=499"),
    ],
)
def test_an_illegal_value_refuses_the_start_with_the_reason(override: str, expected: str) -> None:
    assert expected in refusal(overrides=[override])


@pytest.mark.parametrize("host", ["0.0.0.0", "[::]", "", "192.168.1.5", "example.org", "[2001:db8::1]"])
def test_a_listener_that_others_can_reach_is_refused_with_the_ways_out(host: str) -> None:
    detail = refusal(flags={"listeners": f"{host}:9092"})
    assert "this node lets every client in" in detail
    assert "127.0.0.1" in detail
    assert "--insecure" in detail


def test_insecure_is_a_way_out_and_a_wildcard_needs_an_address_for_clients() -> None:
    insecure = {"listener.insecure.allow": "true"}
    assert loaded(flags={"listeners": "192.168.1.5:9092", **insecure}).addresses.listeners[0].host == "192.168.1.5"
    assert "add advertised.listeners=PLAINTEXT://HOST:9092" in refusal(flags={"listeners": "0.0.0.0:9092", **insecure})
    advertised = {"advertised.listeners": "PLAINTEXT://db.example.org:9092"}
    assert loaded(flags={"listeners": "0.0.0.0:9092", **insecure, **advertised}).addresses.advertised


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "[::1]", "127.9.9.9"])
def test_every_loopback_address_is_welcome(host: str) -> None:
    assert loaded(flags={"listeners": f"{host}:0"}).addresses.listeners[0].port == 0


def test_of_several_units_the_finest_wins() -> None:
    hours, minutes, ms = "log.retention.hours=2", "log.retention.minutes=3", "log.retention.ms=4"
    assert loaded(overrides=[hours]).topic_defaults.retention_ms == 2 * 3_600_000
    assert loaded(overrides=[hours, minutes]).topic_defaults.retention_ms == 3 * 60_000
    assert loaded(overrides=[ms, hours, minutes]).topic_defaults.retention_ms == 4
    assert loaded(overrides=["log.retention.hours=-1"]).topic_defaults.retention_ms == -1
    assert loaded().topic_defaults.retention_ms == 604_800_000
    assert loaded(overrides=["log.roll.hours=1"]).topic_defaults.segment_ms == 3_600_000


def test_broker_names_reach_the_topics() -> None:
    config = loaded(overrides=["log.cleanup.policy=compact,delete", "message.max.bytes=77", "compression.type=lz4"])
    assert config.topic_defaults.cleanup_policy == ("compact", "delete")
    assert config.topic_defaults.max_message_bytes == 77
    assert config.topic_defaults.compression_type == "lz4"


def test_dev_mode_changes_defaults_and_nothing_that_was_said() -> None:
    config = loaded(flags={"dev.mode": "true"}, overrides=["offsets.topic.num.partitions=9"])
    assert config.integer("group.initial.rebalance.delay.ms") == 0
    assert config.integer("offsets.topic.num.partitions") == 9
    assert set(DEV_DEFAULTS) <= set(BROKER_SETTINGS)
    assert config.is_dev


def test_a_toml_file_has_the_same_settings(tmp_path: Path) -> None:
    file = tmp_path / "node.toml"
    file.write_text(
        'node.id = 4\nlisteners = ["127.0.0.1:9092"]\n[log]\ndurability = "page-cache"\n'
        "[auto.create.topics]\nenable = false\n"
    )
    config = loaded(file=file)
    assert config.node_id == 4
    assert not config.is_flushed
    assert not config.flag("auto.create.topics.enable")
    file = tmp_path / "node.properties"
    file.write_text("rack=\\u12\n")
    assert "node.properties: malformed" in refusal(file=file)
    file = tmp_path / "node.toml"
    file.write_text("node.id = = 4")
    assert "is not TOML" in refusal(file=file)
    assert "cannot read" in refusal(file=tmp_path / "missing.properties")


def test_kafkas_own_file_for_a_single_node_is_understood() -> None:
    """The settings of config/server.properties in Apache Kafka 4, with addresses of this machine only."""
    config = NodeConfig(
        parse_properties(
            """
            process.roles=broker,controller
            node.id=1
            controller.quorum.bootstrap.servers=localhost:9093
            listeners=PLAINTEXT://localhost:9092,CONTROLLER://localhost:9093
            inter.broker.listener.name=PLAINTEXT
            advertised.listeners=PLAINTEXT://localhost:9092,CONTROLLER://localhost:9093
            controller.listener.names=CONTROLLER
            listener.security.protocol.map=CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT,SSL:SSL,SASL_SSL:SASL_SSL
            num.network.threads=3
            num.io.threads=8
            socket.send.buffer.bytes=102400
            socket.receive.buffer.bytes=102400
            socket.request.max.bytes=104857600
            log.dirs=/tmp/kraft-combined-logs
            num.partitions=1
            num.recovery.threads.per.data.dir=1
            offsets.topic.replication.factor=1
            transaction.state.log.replication.factor=1
            transaction.state.log.min.isr=1
            log.retention.hours=168
            log.segment.bytes=1073741824
            log.retention.check.interval.ms=300000
            """
        )
    )
    assert [endpoint.port for endpoint in config.addresses.listeners] == [9092, 9093]
    assert config.listener_limits.large_frame_bytes == 104_857_600


def test_described_settings_say_where_they_come_from() -> None:
    entries = {entry.setting.name: entry for entry in loaded(overrides=["num.partitions=3"]).entries()}
    assert entries["num.partitions"].source is ConfigSource.STATIC_BROKER_CONFIG
    assert entries["num.partitions"].value == 3
    assert entries["log.segment.bytes"].source is ConfigSource.DEFAULT_CONFIG
    assert set(entries) == set(BROKER_SETTINGS)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("127.0.0.1:9092", "PLAINTEXT://127.0.0.1:9092"),
        ("clients://[::1]:0", "CLIENTS://[::1]:0"),
        ("PLAINTEXT://:9092", "PLAINTEXT://:9092"),
    ],
)
def test_an_address_may_be_short_or_long(text: str, expected: str) -> None:
    assert str(parse_endpoint(text)) == expected


@pytest.mark.parametrize("host", ["0.0.0.0", "192.168.1.5", "node.example"])
def test_metrics_are_for_this_machine_by_default(host: str) -> None:
    assert "metrics.listener" in refusal(flags={"metrics.listener": f"{host}:9644"})
    insecure = {"listener.insecure.allow": "true"}
    listener = loaded(flags={"metrics.listener": f"{host}:9644", **insecure}).addresses.metrics
    assert listener is not None
    assert (listener.host, listener.port) == (host, 9644)
    assert loaded().addresses.metrics is None


def test_a_metrics_listener_without_a_port_is_refused() -> None:
    assert "metrics.listener='9644': say HOST:PORT" in refusal(flags={"metrics.listener": "9644"})


def test_a_dynamic_setting_wins_over_the_configuration() -> None:
    config = loaded(overrides=["log.segment.bytes=5000"])
    changed = config.with_dynamic(
        of_all={"log.segment.bytes": "6000", "log.roll.ms": "7"}, of_this={"log.roll.ms": "8"}
    )
    assert (changed.topic_defaults.segment_bytes, changed.topic_defaults.segment_ms) == (6000, 8)
    again = changed.with_dynamic(of_all={}, of_this={})
    assert again.topic_defaults == config.topic_defaults
    assert config.topic_defaults.segment_bytes == 5000


@pytest.mark.parametrize(("name", "value"), [("log.roll.ms", "soon"), ("num.partitions", "5"), ("of.the.future", "5")])
def test_an_illegal_dynamic_setting_of_another_release_is_ignored(name: str, value: str) -> None:
    config = loaded()
    changed = config.with_dynamic(of_all={name: value}, of_this={})
    assert changed.topic_defaults == config.topic_defaults
    assert [entry.value for entry in changed.entries()] == [entry.value for entry in config.entries()]


def test_addresses_are_shown_with_the_names_of_their_listeners() -> None:
    """Tools split the value at `://`, as Kafka writes it."""
    config = loaded(flags={"listeners": "127.0.0.1:9092,OTHER://[::1]:9093"})
    assert config.entry("listeners").value == ("PLAINTEXT://127.0.0.1:9092", "OTHER://[::1]:9093")
    assert config.entry("node.id").source is ConfigSource.STATIC_BROKER_CONFIG
