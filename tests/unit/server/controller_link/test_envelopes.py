"""Envelopes (58): requests are sealed in them; the active controller carries out each request once."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulation.quorum.broker_cluster import BrokerCluster, BrokerPlan
from simulation.quorum.broker_node import BrokerNode
from tailrace.model.errors import ErrorCode, KafkaError
from tailrace.model.identity import ClientIdentity
from tailrace.model.ids import ZERO_TOPIC_ID
from tailrace.protocol.headers import decode_response, encode_request, encode_response
from tailrace.protocol.messages.envelope import EnvelopeRequest, EnvelopeResponse
from tailrace.protocol.messages.metadata import MetadataRequest
from tailrace.protocol.messages.registrations import UpdateFeaturesRequest, UpdateFeaturesResponse
from tailrace.protocol.messages.topics import (
    CreatableTopic,
    CreateTopicsRequest,
    CreateTopicsResponse,
    DeleteTopicsRequest,
    DeleteTopicState,
)
from tailrace.protocol.request_headers import decode_request_header
from tailrace.protocol.schema import ZERO_UUID, replace
from tailrace.server.controller_link.envelopes import (
    MAX_NUMBERS,
    MAX_REMEMBERED,
    Client,
    Envelopes,
    EnvelopeSender,
    Sealed,
    decode_address,
    decode_principal,
    encode_address,
    encode_principal,
)

pytestmark = pytest.mark.usefixtures("quiet")

CLIENT = Client("a-client", 77, ClientIdentity("", "::1", "User:alice"))
ANSWER = UpdateFeaturesResponse(error_message=None, results=())


def seal() -> Sealed:
    return Envelopes(b"one start of one").seal(UpdateFeaturesRequest(feature_updates=()), 1, CLIENT)


def data(correlation_id: int = 77) -> bytes:
    return b"".join(encode_response(ANSWER, 1, correlation_id))


def test_each_enveloped_request_keeps_its_number_in_every_attempt() -> None:
    envelopes = Envelopes(b"one start of one")
    first, second = (envelopes.seal(UpdateFeaturesRequest(feature_updates=()), 1, CLIENT) for _ in range(2))
    assert first.envelope(3).request_number == first.envelope(4).request_number < second.envelope(3).request_number
    assert (first.envelope(3).leader_epoch, first.envelope(4).leader_epoch) == (3, 4)


def test_an_enveloped_request_travels_with_its_header_and_its_client() -> None:
    envelope = seal().envelope(3)
    header, _ = decode_request_header(envelope.request_data)
    assert (header.api_key, header.api_version, header.correlation_id, header.client_id) == (57, 1, 77, "a-client")
    assert decode_principal(envelope.request_principal) == "User:alice"
    assert decode_address(envelope.client_host_address) == "::1"


def test_an_enveloped_request_is_encoded_once_however_often_it_leaves() -> None:
    sealed = seal()
    assert sealed.envelope(3).request_data is sealed.envelope(4).request_data


def test_an_enveloped_answer_is_read_and_must_be_to_its_request() -> None:
    assert seal().answer(EnvelopeResponse(response_data=data())) == ANSWER
    for broken in (
        EnvelopeResponse(response_data=data(78)),
        EnvelopeResponse(response_data=data()[:-1]),
        EnvelopeResponse(response_data=b""),
        EnvelopeResponse(response_data=None),
        EnvelopeResponse(response_data=data(), error_code=ErrorCode.CLUSTER_AUTHORIZATION_FAILED),
    ):
        with pytest.raises(KafkaError) as fault:
            seal().answer(broken)
        assert fault.value.code is ErrorCode.UNKNOWN_SERVER_ERROR


def test_a_throttled_client_gets_its_wait() -> None:
    with pytest.raises(KafkaError) as fault:
        seal().answer(EnvelopeResponse(error_code=ErrorCode.REQUEST_TIMED_OUT))
    assert fault.value.code is ErrorCode.REQUEST_TIMED_OUT


def test_a_principal_is_written_as_kafka_writes_its_own() -> None:
    # DefaultKafkaPrincipalBuilder.serialize: the version, then compact strings, a boolean, and a tag section.
    assert encode_principal("User:bob") == b"\0\0" + b"\x05User" + b"\x04bob" + b"\0" + b"\0"


@given(st.text(st.characters(exclude_categories=["Cs"], exclude_characters=":")), st.text(st.characters(codec="utf-8")))
def test_every_principal_in_an_envelope_comes_back(kind: str, name: str) -> None:
    assert decode_principal(encode_principal(f"{kind}:{name}")) == f"{kind}:{name}"


@given(st.ip_addresses())
def test_the_client_address_in_an_envelope_comes_back(address: object) -> None:
    assert decode_address(encode_address(str(address))) == str(address)


@pytest.mark.parametrize(("address", "known"), [("", "127.0.0.1"), ("fe80::1%eth0", "fe80::1"), ("unix", "127.0.0.1")])
def test_an_address_without_a_network_form_is_this_machines(address: str, known: str) -> None:
    assert decode_address(encode_address(address)) == known


CALM = BrokerPlan(voters=1, observers=0, requests_per_s=0, chaos_ms=2_000)
REMOTE_CLIENT = Client("a-client", 9, ClientIdentity("", "10.1.2.3", "User:alice"))
SENDER = b"one start of one"
CREATE_VERSION = 7


class EnvelopesBench:
    """A node that is the active controller, and its world."""

    def __init__(self) -> None:
        self.cluster = BrokerCluster(1, CALM)
        self.cluster.run()
        self.envelopes = Envelopes(SENDER)

    @property
    def node(self) -> BrokerNode:
        return self.cluster.nodes[1]

    @property
    def epoch(self) -> int:
        return self.node.controller.leader_epoch

    def go_on(self, milliseconds: int = 500) -> None:
        self.cluster.world.run(until_ms=self.cluster.world.now_ms + milliseconds)

    def send(self, envelope: EnvelopeRequest) -> list[EnvelopeResponse]:
        answers: list[EnvelopeResponse] = []
        self.node.ask_controller(envelope, 0, answers.append)
        return answers

    def answer(self, envelope: EnvelopeRequest) -> EnvelopeResponse:
        answers = self.send(envelope)
        self.go_on()
        (answer,) = answers
        return answer

    def seal(self, request: Any, version: int = CREATE_VERSION) -> Sealed:
        return self.envelopes.seal(request, version, REMOTE_CLIENT)

    def create(self, name: str) -> EnvelopeRequest:
        return self.seal(create(name)).envelope(self.epoch)

    def delete(self, name: str) -> None:
        topic = DeleteTopicState(name=name, topic_id=ZERO_TOPIC_ID)
        self.answer(self.seal(DeleteTopicsRequest(topics=(topic,), timeout_ms=1_000), 6).envelope(self.epoch))
        assert name not in self.node.controller.image.topics


@pytest.fixture
def controller() -> EnvelopesBench:
    return EnvelopesBench()


def create(name: str) -> CreateTopicsRequest:
    topic = CreatableTopic(name=name, num_partitions=1, replication_factor=1, assignments=(), configs=())
    return CreateTopicsRequest(topics=(topic,))


def created(response: EnvelopeResponse) -> list[int]:
    assert response.response_data is not None, response
    correlation_id, inner = decode_response(CreateTopicsResponse, CREATE_VERSION, response.response_data)
    assert correlation_id == REMOTE_CLIENT.correlation_id
    return [topic.error_code for topic in inner.topics]


def test_an_enveloped_request_is_carried_out_and_the_answer_says_where_it_can_be_seen(
    controller: EnvelopesBench,
) -> None:
    answer = controller.answer(controller.create("orders"))
    assert created(answer) == [ErrorCode.NONE]
    assert "orders" in controller.node.controller.image.topics
    assert answer.metadata_end_offset == controller.node.controller.applied_end_offset


def test_a_sender_that_is_not_ours_gets_kafkas_answer(controller: EnvelopesBench) -> None:
    envelope = replace(controller.create("orders"), leader_epoch=-1, sender_id=ZERO_UUID, request_number=-1)
    answer = controller.answer(envelope)
    assert (created(answer), answer.metadata_end_offset) == ([ErrorCode.NONE], -1)
    # Nothing tells a second envelope from the first.
    assert created(controller.answer(envelope)) == [ErrorCode.TOPIC_ALREADY_EXISTS]


def test_a_number_that_comes_again_gets_the_same_answer_and_nothing_happens(controller: EnvelopesBench) -> None:
    envelope = controller.create("orders")
    first = controller.answer(envelope)
    controller.delete("orders")
    assert controller.answer(envelope) == first
    assert "orders" not in controller.node.controller.image.topics


def test_a_number_that_comes_again_before_the_answer_shares_it(controller: EnvelopesBench) -> None:
    envelope = controller.create("orders")
    first, second = controller.send(envelope), controller.send(envelope)
    assert (first, second) == ([], [])
    controller.go_on()
    assert first == second
    assert created(first[0]) == [ErrorCode.NONE]


def test_a_number_that_is_forgotten_is_refused(controller: EnvelopesBench) -> None:
    late = controller.create("late")
    controller.answer(late)
    for number in range(MAX_REMEMBERED):
        controller.send(controller.create(f"topic-{number}"))
    controller.go_on(3_000)
    controller.delete("late")
    answer = controller.answer(late)
    assert answer.error_code == ErrorCode.REQUEST_TIMED_OUT
    assert "late" not in controller.node.controller.image.topics


def test_a_number_that_comes_late_and_for_the_first_time_is_carried_out(controller: EnvelopesBench) -> None:
    """After a fail-over each request comes again when its own back-off is over."""
    late = controller.create("late")
    for number in range(MAX_REMEMBERED + 1):
        controller.send(controller.create(f"topic-{number}"))
    controller.go_on(3_000)
    assert created(controller.answer(late)) == [ErrorCode.NONE]
    assert "late" in controller.node.controller.image.topics


def test_numbers_are_remembered_longer_than_their_answers_and_not_for_ever() -> None:
    sender = EnvelopeSender()
    numbers = [*range(1, MAX_NUMBERS, 2), *range(0, MAX_NUMBERS, 2), *range(MAX_NUMBERS, MAX_NUMBERS + 300)]
    for number in numbers:
        assert not sender.has_forgotten(number)
        sender.keep(number, EnvelopeResponse(response_data=b""))
    kept = set(sender.answers)
    assert len(kept) == MAX_REMEMBERED
    assert all(sender.has_forgotten(number) for number in numbers if number not in kept)
    assert not sender.has_forgotten(MAX_NUMBERS + 300)
    assert sender.numbers == MAX_NUMBERS
    sender.keep(1 << 40, EnvelopeResponse(response_data=b""))
    assert sender.has_forgotten(0)
    assert not sender.has_forgotten((1 << 40) - 1)


def test_an_envelope_for_another_epoch_is_refused(controller: EnvelopesBench) -> None:
    for epoch in (controller.epoch - 1, controller.epoch + 1):
        answer = controller.answer(replace(controller.create("orders"), leader_epoch=epoch))
        assert (answer.error_code, answer.response_data) == (ErrorCode.NOT_CONTROLLER, None)
    assert "orders" not in controller.node.controller.image.topics


def test_a_node_that_follows_opens_nothing() -> None:
    cluster = BrokerCluster(2, BrokerPlan(requests_per_s=0, chaos_ms=2_000))
    cluster.run()
    leader = cluster.leader()
    follower = next(node for node in cluster.nodes.values() if node is not leader)
    sealed = Envelopes(SENDER).seal(create("orders"), CREATE_VERSION, REMOTE_CLIENT)
    answers: list[EnvelopeResponse] = []
    follower.ask_controller(sealed.envelope(follower.controller.leader_epoch), 0, answers.append)
    assert [answer.error_code for answer in answers] == [ErrorCode.NOT_CONTROLLER]


def frame(request: Any, version: int) -> bytes:
    return b"".join(encode_request(request, version, 1, None))


def test_an_api_that_is_not_forwarded_is_refused_without_harm(controller: EnvelopesBench) -> None:
    good = controller.create("orders")
    inner = good.request_data
    for data, code in (
        (b"", ErrorCode.INVALID_REQUEST),
        (inner[:3], ErrorCode.INVALID_REQUEST),
        (inner[:20], ErrorCode.INVALID_REQUEST),
        (inner[:-5], ErrorCode.INVALID_REQUEST),
        (frame(good, 0), ErrorCode.INVALID_REQUEST),  # an envelope
        (frame(MetadataRequest(topics=None), 9), ErrorCode.INVALID_REQUEST),  # for every broker to answer
        (b"\x7f\xff" + inner[2:], ErrorCode.INVALID_REQUEST),  # an API that does not exist
        (inner[:2] + b"\x00\x63" + inner[4:], ErrorCode.UNSUPPORTED_VERSION),
    ):
        answer = controller.answer(replace(good, request_data=data, sender_id=ZERO_UUID))
        assert (answer.error_code, answer.response_data) == (code, None), data
    assert created(controller.answer(good)) == [ErrorCode.NONE]


@pytest.mark.parametrize(
    "principal",
    [None, b"", b"\0", b"\0\1", b"\0\0", b"\0\0\xff\xff\xff\xff\x7f", encode_principal("User:a")[:-1], b"\x80\0" * 9],
)
def test_a_principal_that_cannot_be_read_is_said_to_be_so(controller: EnvelopesBench, principal: bytes | None) -> None:
    answer = controller.answer(replace(controller.create("orders"), request_principal=principal))
    assert answer.error_code == ErrorCode.PRINCIPAL_DESERIALIZATION_FAILURE


@pytest.mark.parametrize("address", [b"", b"\1\2\3", bytes(5), bytes(17)])
def test_an_address_that_is_none_is_refused(controller: EnvelopesBench, address: bytes) -> None:
    answer = controller.answer(replace(controller.create("orders"), client_host_address=address))
    assert answer.error_code == ErrorCode.INVALID_REQUEST


def test_an_enveloped_request_of_more_elements_than_a_client_may_send_is_refused(controller: EnvelopesBench) -> None:
    topics = tuple(DeleteTopicState(name="t", topic_id=ZERO_TOPIC_ID) for _ in range(20_001))
    answer = controller.answer(
        controller.seal(DeleteTopicsRequest(topics=topics, timeout_ms=1_000), 6).envelope(controller.epoch)
    )
    assert answer.error_code == ErrorCode.INVALID_REQUEST
