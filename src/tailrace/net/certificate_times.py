"""The end of a certificate's validity, read from its DER form (RFC 5280): `ssl` shows the end for a peer alone."""

import base64
import re
from datetime import UTC, datetime
from typing import Final, NamedTuple

_BLOCK: Final = re.compile(r"-----BEGIN CERTIFICATE-----(.*?)-----END CERTIFICATE-----", re.DOTALL)
_SEQUENCE: Final = 0x30
_VERSION: Final = 0xA0
_UTC_TIME: Final = 0x17
_LONG_FORM: Final = 0x80
_FIELDS_BEFORE_VALIDITY: Final = 3
"""Serial number, algorithm, issuer."""
_CENTURY_PIVOT: Final = "50"


class _Element(NamedTuple):
    tag: int
    content: memoryview
    rest: memoryview
    """The bytes behind the element."""


def end_of_validity(pem: str) -> datetime | None:
    """The end of the first certificate in a PEM text; None if there is no certificate, or its form is not known."""
    found = _BLOCK.search(pem)
    if found is None:
        return None
    try:
        return _end(memoryview(base64.b64decode(found[1])))
    except (ValueError, IndexError):
        return None


def _end(certificate: memoryview) -> datetime:
    field = _element(_element(_element(certificate).content).content)
    if field.tag == _VERSION:
        field = _element(field.rest)
    for _ in range(_FIELDS_BEFORE_VALIDITY):
        field = _element(field.rest)
    if field.tag != _SEQUENCE:
        raise ValueError("no validity")
    last = _element(_element(field.content).rest)
    text = bytes(last.content).decode("ascii")
    if last.tag == _UTC_TIME:
        text = ("19" if text[:2] >= _CENTURY_PIVOT else "20") + text
    return datetime.strptime(text, "%Y%m%d%H%M%SZ").replace(tzinfo=UTC)


def _element(data: memoryview) -> _Element:
    tag, length, start = data[0], data[1], 2
    if length & _LONG_FORM:
        start += length & ~_LONG_FORM
        length = int.from_bytes(data[2:start], "big")
    return _Element(tag, data[start : start + length], data[start + length :])
