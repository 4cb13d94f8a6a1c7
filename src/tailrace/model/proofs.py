"""Ids that only their owner can prove: an id is the hash of a secret, and a request in its name carries the secret.

The ids of a broker's start (its incarnation) and of a node's directory stand in the metadata log, where any client may
read the ids. An id of this module says of itself that a secret belongs to the id: its text form begins with `proof`,
and the id is a UUID of version 8 (RFC 9562: custom). The ids of Kafka are random UUIDs of version 4, and the ids of
earlier releases are random bytes: such random ids need no secret, and every client that knows the id may speak in their
name.
"""

import hashlib
from base64 import urlsafe_b64decode
from hmac import compare_digest
from typing import Final

SECRET_BYTES: Final = 16
NO_SECRET: Final = bytes(SECRET_BYTES)
"""Stands for no secret, as on the wire."""
_MARK: Final = urlsafe_b64decode("proofA==")
_VERSION_AT, _VERSION, _VERSION_BITS = 6, 0x80, 0x0F
_VARIANT_AT, _VARIANT, _VARIANT_BITS = 8, 0x80, 0x3F


def id_of_secret(secret: bytes) -> bytes:
    """The id of 16 bytes that belongs to this secret: 90 bits of its SHA-256, and marks."""
    made = bytearray(_MARK + hashlib.sha256(secret).digest()[: 16 - len(_MARK)])
    made[_VERSION_AT] = _VERSION | made[_VERSION_AT] & _VERSION_BITS
    made[_VARIANT_AT] = _VARIANT | made[_VARIANT_AT] & _VARIANT_BITS
    return bytes(made)


def needs_secret(found_id: bytes) -> bool:
    """Whether this id is one of `id_of_secret`. Random bytes look so once in 2**38."""
    return (
        found_id.startswith(_MARK)
        and len(found_id) == SECRET_BYTES
        and found_id[_VERSION_AT] & ~_VERSION_BITS == _VERSION
        and found_id[_VARIANT_AT] & ~_VARIANT_BITS == _VARIANT
    )


def may_speak_for(found_id: bytes, secret: bytes) -> bool:
    """Whether a request with this secret may speak in the name of this id: the id needs no secret, or this secret."""
    return not needs_secret(found_id) or compare_digest(id_of_secret(secret), found_id)
