"""JSON for records: `Producer(..., value_serializer=tailrace.json.serialize)`, and `deserialize` for a consumer.

The text is UTF-8, without spaces, and valid for every reader of JSON (RFC 8259).
"""

import json
from typing import Any


def serialize(value: object) -> bytes:
    """The value as JSON. Raises TypeError for a value that JSON does not have, ValueError for NaN and infinities."""
    return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()


def deserialize(data: bytes) -> Any:
    """The value of a JSON text. Raises ValueError for other bytes."""
    return json.loads(data)
