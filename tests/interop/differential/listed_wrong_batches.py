"""The list of differences: produced batches with wrong fields."""

from interop.differential.differences import Difference

_CODE = "error_code"
_TAKEN = "NONE (0)"
_INVALID = "INVALID_RECORD (87)"
_TIME = "INVALID_TIMESTAMP (32)"
_UNKNOWN = "UNKNOWN_SERVER_ERROR (-1)"

WRONG_BATCHES = (
    Difference(
        "Produce",
        ("codec=5;*", "codec=6;*", "codec=7;*"),
        {_CODE: ("UNSUPPORTED_COMPRESSION_TYPE (76)", _UNKNOWN)},
        "the request is wrong, not the server",
    ),
    Difference(
        "Produce",
        (
            "codec=another;*",
            "changed byte of the data=*",
            "bytes missing of the data=*",
            "bytes behind the data=*",
        ),
        {_CODE: (_INVALID, _UNKNOWN)},
        "bytes that the codec cannot unpack are a fault of the batch, not of the server",
    ),
    Difference(
        "Produce",
        ("attribute=64;*", "attribute=128;*", "attribute=16384;*"),
        {_CODE: (_INVALID, _TAKEN)},
        "a producer sets no delete horizon, and no bit without a meaning",
    ),
    Difference(
        "Produce",
        ("attribute=8;*",),
        {_CODE: (_TIME, _TAKEN)},
        "only the broker may state its append time; Kafka clears the bit",
    ),
    Difference(
        "Produce",
        ("attribute=16;*",),
        {_CODE: (_INVALID, "TRANSACTIONAL_ID_AUTHORIZATION_FAILED (53)")},
        "without a producer a batch is in no transaction: it is wrong from any client",
    ),
    Difference(
        "Produce",
        ("batch length=-1;*", "batch length=-12;*"),
        {_CODE: (_INVALID, "CORRUPT_MESSAGE (2)")},
        "bytes behind a batch are found before the checksum is compared, which covers another number of bytes",
    ),
    Difference(
        "Produce",
        ("record length=*",),
        {_CODE: (_INVALID, _TAKEN)},
        "in a compressed batch Kafka does not look at the length of a record, and no reader can parse it",
    ),
    Difference(
        "Produce",
        ("offset delta=*",),
        {_CODE: (_TAKEN, _UNKNOWN)},
        "in a compressed batch offsets become 0 to n - 1; Kafka means to do so too, and fails",
    ),
    Difference(
        "Produce",
        ("timestamp delta=9223372036854775807;*", "base_timestamp=9223372036854775807;*"),
        {_CODE: (_INVALID, _TIME)},
        "a sum beyond 64 bits is no timestamp; Kafka lets it overflow, and finds it out of bounds",
    ),
    Difference(
        "Produce",
        ("timestamp delta=-9223372036854775808;*", "base_timestamp=-9223372036854775808;*"),
        {_CODE: (_TAKEN, _TIME)},
        "the default of message.timestamp.before.max.ms is no bound; Kafka's difference overflows",
    ),
    Difference(
        "Produce",
        ("seeded: *timestamp delta=-9223372036854775808;*",),
        {_CODE: (_INVALID, _TIME)},
        "a sum below 64 bits is no timestamp; Kafka lets it overflow, and finds it out of bounds",
    ),
    Difference(
        "Produce",
        ("seeded: *base_timestamp=-9223372036854775808;*",),
        {_CODE: (_TAKEN, _TIME)},
        "with a delta above 0 too: the default of message.timestamp.before.max.ms is no bound",
    ),
    Difference(
        "Produce",
        ("seeded: *attribute=8;*",),
        {_CODE: (_TIME, _TAKEN)},
        "only the broker may state its append time; Kafka clears the bit, and with it a wrong time",
    ),
    Difference(
        "Produce",
        ("seeded: *producer_id=70000;*", "seeded: *producer_id=9223372036854775807;*"),
        {_CODE: (_INVALID, _TAKEN)},
        "a producer with an id has an epoch",
    ),
)

WRONG_BATCHES_OF_TOPICS = (
    Difference(
        "Produce",
        ("append-time: timestamp delta=9223372036854775807;*", "append-time: base_timestamp=9223372036854775807;*"),
        {_CODE: (_INVALID, _TAKEN)},
        "a sum beyond 64 bits is no timestamp, also where the broker's time replaces it",
    ),
    Difference(
        "Produce",
        ("always-gzip: producer_id=-2;*", "never-compressed: producer_id=-2;*"),
        {_CODE: (_TAKEN, _UNKNOWN)},
        "-2 stands for no producer; Kafka takes the batch too, except where Kafka compresses it again",
    ),
    Difference(
        "Produce",
        ("always-gzip: record length=2147483647;*", "never-compressed: record length=2147483647;*"),
        {_CODE: (_INVALID, _UNKNOWN)},
        "a record that cannot be parsed is a fault of the batch, not of the server",
    ),
)
"""Beside WRONG_BATCHES, in topics whose settings have a leader treat a batch in another way."""
