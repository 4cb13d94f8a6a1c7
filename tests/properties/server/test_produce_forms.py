"""The short cuts of Produce give what the codec gives, for anything that may be sent."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.model.errors import KafkaError
from tailrace.protocol.headers import encode_request, encode_response
from tailrace.protocol.messages.produce import (
    MAX_FORMS,
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceForms,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
    TopicProduceResponse,
    encode_produced,
    form_of,
)
from tailrace.protocol.request_headers import decode_request_header
from tailrace.protocol.schema import decode, replace

VERSIONS = range(3, 14)
NAMES = st.text(st.characters(codec="utf-8"), max_size=200)
INT64 = st.integers(-(2**63), 2**63 - 1)
RECORDS = st.one_of(st.binary(max_size=20), st.integers(100, 20_000).map(lambda size: b"r" * size))


@given(
    version=st.sampled_from(VERSIONS),
    correlation_id=st.integers(-(2**31), 2**31 - 1),
    name=NAMES,
    topic_id=st.binary(min_size=16, max_size=16),
    index=st.integers(0, 2**31 - 1),
    offsets=st.tuples(INT64, INT64, INT64),
)
def test_the_answer_of_one_batch_has_the_bytes_that_the_codec_gives(
    version: int, correlation_id: int, name: str, topic_id: bytes, index: int, offsets: tuple[int, int, int]
) -> None:
    base_offset, log_append_time_ms, log_start_offset = offsets
    answer = PartitionProduceResponse(
        index=index,
        base_offset=base_offset,
        log_append_time_ms=log_append_time_ms,
        log_start_offset=log_start_offset,
    )
    topic = TopicProduceResponse(name=name, topic_id=topic_id, partition_responses=(answer,))
    expected = b"".join(encode_response(ProduceResponse(responses=(topic,)), version, correlation_id))
    key = name if version < 13 else topic_id
    for _ in range(2):  # the form is made, and used again
        assert encode_produced(version, correlation_id, key, index, *offsets) == expected


@st.composite
def requests(draw: st.DrawFn) -> ProduceRequest:
    def topic() -> TopicProduceData:
        parts = draw(st.lists(st.tuples(st.integers(0, 3), st.none() | RECORDS), min_size=1, max_size=2))
        return TopicProduceData(
            name=draw(st.sampled_from(("a", "orders", "o" * 130))),
            topic_id=draw(st.sampled_from((b"1" * 16, b"2" * 16))),
            partition_data=tuple(PartitionProduceData(index=index, records=records) for index, records in parts),
        )

    return ProduceRequest(
        transactional_id=draw(st.sampled_from((None, "t"))),
        acks=draw(st.sampled_from((-1, 0, 1))),
        timeout_ms=draw(st.sampled_from((0, 30_000))),
        topic_data=tuple(topic() for _ in range(draw(st.integers(1, 2)))),
    )


def with_records(request: ProduceRequest, records: bytes) -> ProduceRequest:
    """The same request for another partition, with other records."""
    part = PartitionProduceData(index=9, records=records)
    return replace(request, topic_data=(replace(request.topic_data[0], partition_data=(part,)),))


def frame_of(request: ProduceRequest, version: int, client_id: str | None) -> bytes:
    return b"".join(encode_request(request, version, correlation_id=3, client_id=client_id))


@given(
    version=st.sampled_from(VERSIONS),
    clients=st.tuples(*[st.sampled_from((None, "", "client", "é" * 70))] * 2),
    first=requests(),
    second=requests(),
    other_records=st.none() | RECORDS,
    change=st.none() | st.tuples(st.integers(0, 200), st.integers(0, 255)),
    rest=st.sampled_from((b"", b"\0", b"xyz")),
)
def test_a_form_and_the_codec_read_the_same_request(
    version: int,
    clients: tuple[str | None, str | None],
    first: ProduceRequest,
    second: ProduceRequest,
    other_records: bytes | None,
    change: tuple[int, int] | None,
    rest: bytes,
) -> None:
    form = form_of(memoryview(frame_of(first, version, clients[0])), version, clients[0], _decoded(first, version))
    if form is None:
        return
    if other_records is not None:
        second, clients = with_records(first, other_records), (clients[0], clients[0])
    frame = bytearray(frame_of(second, version, clients[1]) + rest)
    if change is not None:
        at = 8 + change[0] % (len(frame) - 8)
        frame[at] = change[1]
    read = form.read(memoryview(frame))
    if read is None:
        return
    header, position = decode_request_header(frame)
    try:
        request = decode(ProduceRequest, version, memoryview(frame), position)
    except KafkaError:
        pytest.fail("the form reads what the codec refuses")
    ((data,),) = (topic.partition_data for topic in request.topic_data)
    assert (data.index, data.records) == read
    assert header.client_id == form.client_id
    assert (request.acks, request.timeout_ms, request.transactional_id) == (
        form.request.acks,
        form.request.timeout_ms,
        form.request.transactional_id,
    )
    (topic,) = request.topic_data
    assert (topic.name, topic.topic_id) == (form.topic.name, form.topic.topic_id)


def _decoded(request: ProduceRequest, version: int) -> ProduceRequest:
    frame = memoryview(frame_of(request, version, "c"))
    return decode(ProduceRequest, version, frame, decode_request_header(frame)[1])


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("size", [1, 61, 126, 127, 128, 16_382, 16_383, 16_384, 3_000_000])
def test_a_producer_of_single_batches_is_read_with_its_form(version: int, size: int) -> None:
    def request(records: bytes, index: int) -> ProduceRequest:
        parts = (PartitionProduceData(index=index, records=records),)
        topic = TopicProduceData(name="orders", topic_id=b"1" * 16, partition_data=parts)
        return ProduceRequest(acks=-1, timeout_ms=30_000, topic_data=(topic,))

    first = memoryview(frame_of(request(b"r" * 100, 0), version, "client"))
    decoded = decode(ProduceRequest, version, first, decode_request_header(first)[1])
    form = form_of(first, version, "client", decoded)
    assert form is not None
    read = form.read(memoryview(frame_of(request(b"s" * size, 7), version, "client")))
    assert read == (7, b"s" * size)


@given(
    names=st.lists(st.text("ab", min_size=1, max_size=12), min_size=1, max_size=200), version=st.sampled_from(VERSIONS)
)
def test_a_form_is_found_for_its_own_requests_only_and_few_are_kept(names: list[str], version: int) -> None:
    forms = ProduceForms()
    for name in names:
        parts = (PartitionProduceData(index=1, records=b"r" * 100),)
        topic = TopicProduceData(name=name, topic_id=name.encode().ljust(16), partition_data=parts)
        frame = memoryview(frame_of(ProduceRequest(acks=1, timeout_ms=1, topic_data=(topic,)), version, "client"))
        found = forms.find(frame)
        if found is None:
            decoded = decode(ProduceRequest, version, frame, decode_request_header(frame)[1])
            form = form_of(frame, version, "client", decoded)
            assert form is not None
            forms.add(form)
            found = forms.find(frame)
        assert found is forms.last
        assert found is not None
        assert found.read(frame) == (1, b"r" * 100)
        assert (found.topic.name or found.topic.topic_id) == (topic.name if version < 13 else topic.topic_id)
        assert len(forms) <= MAX_FORMS
