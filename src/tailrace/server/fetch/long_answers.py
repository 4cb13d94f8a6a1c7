"""The encoding of an answer of very many partitions in steps: 100,000 partitions take a quarter of a second."""

from collections.abc import Iterator
from functools import cache
from typing import Final

from tailrace.protocol.encoder import Encoder
from tailrace.protocol.headers import encode_response
from tailrace.protocol.messages.fetch import FetchableTopicResponse, FetchResponse, PartitionData
from tailrace.protocol.primitives import Buffer, uvarint
from tailrace.protocol.rows import portions
from tailrace.protocol.schema import replace, schema_of, struct_encoder
from tailrace.server.context import RequestContext

STEP: Final = 64
"""Partitions that are encoded in a step."""


def respond_in_steps(context: RequestContext, response: FetchResponse) -> Iterator[None]:
    """Send the response; each step encodes and counts a part. The bytes equal those of `RequestContext.send`."""
    response = context.throttled(response)
    version = context.api_version
    flexible = schema_of(FetchResponse).flexible.has(version)
    encode_topic, encode_partition = _encoders(version)
    nothing = b"".join(_encoded(context, replace(response, responses=(), node_endpoints=())))
    whole = b"".join(_encoded(context, replace(response, responses=())))
    # Behind the count of topics, which is 0 here, stand the tagged fields of the response.
    at = len(nothing) - (2 if flexible else 4)
    chunks: list[Buffer] = []
    parts: list[Buffer] = [nothing[:at], _count(len(response.responses), flexible=flexible)]
    context.services.errors.count(context.api_key, replace(response, responses=()))
    for topic in response.responses:
        head: list[Buffer] = []
        encode_topic(replace(topic, partitions=()), head, [])
        parts.append(b"".join(head)[: -2 if flexible else -4])
        parts.append(_count(len(topic.partitions), flexible=flexible))
        for portion in portions(topic.partitions, STEP):
            for partition in portion:
                encode_partition(partition, parts, chunks)
            part = replace(topic, partitions=portion)
            context.services.errors.count(context.api_key, FetchResponse(responses=(part,)))
            yield
        if flexible:
            parts.append(b"\0")
    parts.append(whole[at + (1 if flexible else 4) :])
    chunks.append(b"".join(parts))
    if context.connection.is_open:
        context.connection.answer(context.slot, chunks)


def _encoded(context: RequestContext, response: FetchResponse) -> list[Buffer]:
    return encode_response(response, context.api_version, context.correlation_id)


def _count(count: int, *, flexible: bool) -> bytes:
    return uvarint(count + 1) if flexible else count.to_bytes(4, "big")


@cache
def _encoders(version: int) -> tuple[Encoder, Encoder]:
    """The encoders of a topic and of a partition."""
    return (
        struct_encoder(FetchResponse, FetchableTopicResponse, version),
        struct_encoder(FetchResponse, PartitionData, version),
    )
