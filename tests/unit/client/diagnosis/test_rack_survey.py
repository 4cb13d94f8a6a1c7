"""The survey of a cluster for a diagnosis of racks, also of brokers that do not answer."""

import socket
from dataclasses import replace

import pytest

from tailrace.client.blocking import Admin
from tailrace.client.diagnosis.rack_survey import survey_racks
from tailrace.metadata.broker_commands import BrokerRegistered, RegisterBroker, UnfenceBroker
from tailrace.model.errors import ErrorCode, KafkaError
from tailrace.model.ids import BrokerId
from tailrace.protocol.messages.fetch import FetchRequest
from tailrace.protocol.registry import api_of
from testkit.nodes.admin_path import ENDPOINT
from testkit.nodes.admin_server import AdminServer
from testkit.nodes.data_path import BROKER

OTHER = BrokerId(BROKER + 1)


def test_a_broker_is_surveyed_with_version_and_settings(admin: Admin) -> None:
    admin.create_topics({"orders": 1, "flights": 1})
    survey = survey_racks(admin)
    broker = survey.brokers[BROKER]
    assert (broker.rack, broker.is_fenced, broker.fault) == (None, False, "")
    assert broker.fetch_version == api_of(FetchRequest).max_version
    assert [topic.name for topic in survey.topics] == ["flights", "orders"]
    assert [topic.name for topic in survey_racks(admin, ["orders"]).topics] == ["orders"]


def test_a_fenced_broker_is_not_contacted(server: AdminServer, admin: Admin) -> None:
    server.register(OTHER)
    broker = survey_racks(admin).brokers[OTHER]
    assert (broker.is_fenced, broker.fetch_version) == (True, None)


def test_a_broker_that_cannot_be_reached_is_surveyed_with_its_fault(server: AdminServer, admin: Admin) -> None:
    with socket.socket() as taken:  # so that no other program takes the port; and none listens there
        taken.bind(("127.0.0.1", 0))
        endpoint = replace(ENDPOINT, port=taken.getsockname()[1])
        registration = RegisterBroker(
            broker_id=OTHER, incarnation_id=OTHER.to_bytes(16, "big"), endpoints=(endpoint,), rack="b"
        )
        registered = server.submit(registration)
        assert isinstance(registered, BrokerRegistered)
        server.submit(UnfenceBroker(broker_id=OTHER, broker_epoch=registered.broker_epoch))
        survey = survey_racks(admin)
    other = survey.brokers[OTHER]
    assert (other.rack, other.is_fenced, other.fetch_version) == ("b", False, None)
    assert other.fault == "nothing listens there"
    assert survey.brokers[BROKER].fault == ""


def test_a_topic_that_does_not_exist_is_an_error(admin: Admin) -> None:
    with pytest.raises(KafkaError) as caught:
        survey_racks(admin, ["missing"])
    assert caught.value.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
