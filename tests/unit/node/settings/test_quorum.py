"""Settings of the metadata quorum: settings that a node takes, and settings with which it does not start."""

import pytest

from tailrace.model.errors import ErrorCode, KafkaError
from tailrace.net.connection import Address
from tailrace.node.settings.config import NodeConfig

COMBINED = {
    "listeners": "PLAINTEXT://127.0.0.1:9092,CONTROLLER://127.0.0.1:9093",
    "controller.listener.names": "CONTROLLER",
    "controller.quorum.voters": "1@127.0.0.1:9093,2@[::1]:9094",
}


def config(**settings: str) -> NodeConfig:
    return NodeConfig({name.replace("_", "."): text for name, text in settings.items()})


def test_a_node_without_settings_is_a_quorum_of_one() -> None:
    quorum = NodeConfig({}).quorum
    assert (quorum.is_broker, quorum.is_controller, quorum.is_founder, quorum.knows_others) == (True, True, True, False)


def test_founders_are_found_by_id_and_a_controllers_listener_is_not_for_clients() -> None:
    config = NodeConfig(COMBINED)
    assert config.quorum.founders == {1: Address("127.0.0.1", 9093), 2: Address("::1", 9094)}
    assert (config.quorum.is_founder, config.quorum.knows_others) == (True, True)
    assert [listener.name for listener in config.client_listeners] == ["PLAINTEXT"]
    assert [listener.name for listener in config.controller_listeners] == ["CONTROLLER"]
    assert config.inter_broker_listener == "PLAINTEXT"


def test_a_node_that_is_no_founder_founds_nothing() -> None:
    assert not NodeConfig({**COMBINED, "node.id": "7"}).quorum.is_founder
    joining = {**COMBINED, "controller.quorum.voters": "", "controller.quorum.bootstrap.servers": "127.0.0.1:9093"}
    assert not NodeConfig(joining).quorum.is_founder
    broker = config(process_roles="broker", controller_quorum_bootstrap_servers="127.0.0.1:9093")
    assert not broker.quorum.is_founder
    assert broker.quorum.places == (Address("127.0.0.1", 9093),)


def test_times_and_sizes_are_kafkas_settings() -> None:
    quorum = config(
        controller_quorum_fetch_timeout_ms="3000",
        controller_quorum_election_timeout_ms="700",
        controller_quorum_request_timeout_ms="1500",
        replica_fetch_response_max_bytes="4096",
        metadata_log_max_record_bytes_between_snapshots="1000",
    ).quorum
    raft = quorum.raft
    assert (raft.fetch_timeout_ms, raft.election_timeout_ms, raft.request_timeout_ms) == (3000, 700, 1500)
    assert (raft.snapshot_max_bytes, quorum.snapshot_trigger.min_log_bytes) == (4096, 1000)


def test_the_size_of_one_fetch_suits_a_slow_link_and_can_be_less() -> None:
    """KIP-1219: 1 MiB; the smaller value of this setting and of KIP-630's `replica.fetch.response.max.bytes`."""
    usual = config().quorum.raft
    assert (usual.fetch_max_bytes, usual.snapshot_max_bytes) == (1 << 20, 1 << 20)
    less = config(controller_quorum_fetch_max_bytes="70000", controller_quorum_fetch_snapshot_max_bytes="60000").quorum
    assert (less.raft.fetch_max_bytes, less.raft.snapshot_max_bytes) == (70_000, 60_000)
    assert config(replica_fetch_response_max_bytes="0").quorum.raft.snapshot_max_bytes == 1


def test_a_fetch_waits_for_less_time_than_its_sender_allows() -> None:
    assert config().quorum.raft.fetch_max_wait_ms == 500
    assert config(controller_quorum_request_timeout_ms="300").quorum.raft.fetch_max_wait_ms == 150
    assert config(controller_quorum_fetch_timeout_ms="600").quorum.raft.fetch_max_wait_ms == 300


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"process.roles": ""}, "process.roles: say broker, controller or broker,controller"),
        ({"process.roles": "broker"}, "a broker has to know its controllers; say controller.quorum.voters="),
        ({"process.roles": "controller"}, "PLAINTEXT is for clients, which a node that is only a controller"),
        (
            {"process.roles": "broker", "controller.quorum.voters": "1@127.0.0.1:9093"},
            "controller.quorum.voters names node 1: say process.roles=broker,controller",
        ),
        (
            {"process.roles": "broker", "controller.quorum.voters": "2@127.0.0.1:9093", **COMBINED},
            "CONTROLLER is for controllers (controller.listener.names), and this node is no controller",
        ),
        ({**COMBINED, "listeners": "PLAINTEXT://127.0.0.1:9092"}, "none of these is in listeners; add CONTROLLER://"),
        ({**COMBINED, "listeners": "CONTROLLER://127.0.0.1:9093"}, "that is not for controllers"),
        (
            {"controller.quorum.voters": "1@127.0.0.1:9093,2@127.0.0.1:9094"},
            "the other controllers need a listener of this node; say controller.listener.names=CONTROLLER",
        ),
        (
            {**COMBINED, "listeners": "PLAINTEXT://127.0.0.1:9092,CONTROLLER://127.0.0.1:0"},
            "others look for node 1 at 127.0.0.1:9093; give the controllers' listener that port",
        ),
        ({"controller.quorum.voters": "127.0.0.1:9093"}, "say ID@HOST:PORT, as in 1@127.0.0.1:9093"),
        ({"controller.quorum.voters": "1@127.0.0.1"}, "controller.quorum.voters='127.0.0.1': say HOST:PORT"),
        ({"controller.quorum.voters": "1@h:1,1@h:2"}, "controller.quorum.voters: node 1 is there twice"),
        ({"controller.quorum.bootstrap.servers": "here:0"}, "controller.quorum.bootstrap.servers='here:0': say HOST"),
        ({**COMBINED, "inter.broker.listener.name": "CONTROLLER"}, "there is no listener of this name for brokers"),
        ({"inter.broker.listener.name": "INSIDE"}, "inter.broker.listener.name=INSIDE: there is no listener"),
    ],
)
def test_settings_that_do_not_fit_refuse_the_start_and_name_the_way_out(settings: dict[str, str], message: str) -> None:
    with pytest.raises(KafkaError) as caught:
        NodeConfig(settings)
    assert caught.value.code is ErrorCode.INVALID_CONFIG
    assert message in caught.value.detail
