"""The header of a request, as a server reads it.

A client does without this module: it needs the table of all requests, and with the table every message.
"""

from struct import Struct, error
from typing import NamedTuple

from tailrace.model.errors import MalformedMessage
from tailrace.protocol.headers import REQUEST_HEAD, skip_tags
from tailrace.protocol.primitives import Buffer, too_short
from tailrace.protocol.registry import APIS

_client_id_length = Struct(">h").unpack_from
_CLIENT_ID_LENGTH_OFFSET = 8
_TOO_SHORT = "a request shorter than its header"


class RequestHeader(NamedTuple):
    """The key, version and correlation id of a request. Tagged fields are skipped: Kafka defines none."""

    api_key: int
    api_version: int
    correlation_id: int
    client_id: str | None


def decode_request_header(data: Buffer) -> tuple[RequestHeader, int]:
    """The header of the request frame `data`, and where the body starts.

    The header of an unknown API is read as v1, so that the refusal can name the API. Raises MalformedMessage.
    """
    try:
        api_key, api_version, correlation_id, _ = REQUEST_HEAD.unpack_from(data)
    except error as short:
        raise MalformedMessage(_TOO_SHORT) from short
    api = APIS.get(api_key)
    client_id, position = decode_client_id(data, is_flexible=api is not None and api_version >= api.flexible_from)
    return RequestHeader(api_key, api_version, correlation_id, client_id), position


def decode_client_id(data: Buffer, *, is_flexible: bool) -> tuple[str | None, int]:
    """The client id in the header of the request frame `data`, and where the body starts. Raises MalformedMessage.

    `is_flexible`: the header has a tag section.
    """
    try:
        (length,) = _client_id_length(data, _CLIENT_ID_LENGTH_OFFSET)
    except error as short:
        raise MalformedMessage(_TOO_SHORT) from short
    position = REQUEST_HEAD.size
    client_id = None
    if length >= 0:
        stop = position + length
        if stop > len(data):
            too_short("client id", position)
        try:
            client_id = str(data[position:stop], "utf-8")
        except UnicodeDecodeError as bad:
            raise MalformedMessage("a client id that is not UTF-8") from bad
        position = stop
    elif length != -1:
        raise MalformedMessage(f"a client id of {length} bytes")
    if is_flexible:
        has_no_tags = position < len(data) and data[position] == 0
        position = position + 1 if has_no_tags else skip_tags(data, position)
    return client_id, position
