"""The list of differences: fetch sessions."""

from interop.differential.differences import ANY, MISSING, ONLY_HERE, Difference, Values

_OK = "NONE (0)"
_UNKNOWN = "UNKNOWN_SERVER_ERROR (-1)"
_NO_RANGE: Values = (ANY, -1)
_RANGE = {
    f"responses.partitions.{name}": _NO_RANGE for name in ("high_watermark", "last_stable_offset", "log_start_offset")
}
_IDS_OF_NO_SHARD = ("ids in v*: id -2147483648", "ids in v*: id 2147483647")
_NO_SHARD = "no session has this id; Kafka looks for the shard of the id and fails"

SESSIONS = (
    Difference(
        "Fetch",
        tuple(f"{ids}, epoch 1" for ids in _IDS_OF_NO_SHARD),
        {
            "error_code": ("FETCH_SESSION_ID_NOT_FOUND (70)", _UNKNOWN),
            "session_id": (0, "<session>"),
            "responses": MISSING,
        },
        _NO_SHARD,
    ),
    Difference(
        "Fetch",
        tuple(f"{ids}, epoch {epoch}" for ids in _IDS_OF_NO_SHARD for epoch in (-1, 0)),
        {
            "error_code": (_OK, _UNKNOWN),
            "session_id": (0, "<session>"),
            "responses.partitions.error_code": (_OK, _UNKNOWN),
            "responses.partitions.aborted_transactions": (None, {}),
            "responses": ONLY_HERE,
            **_RANGE,
        },
        _NO_SHARD,
    ),
    Difference(
        "Fetch",
        ("a session of nothing in v*: is asked for", "a session of nothing in v*: is asked for more"),
        {
            "session_id": (0, "<session>"),
            "error_code": ("FETCH_SESSION_ID_NOT_FOUND (70)", _OK),
            "responses": MISSING,
        },
        "a session of no partitions saves nothing; Kafka keeps one until its next fetch",
    ),
    Difference(
        "Fetch",
        ("faults in v*: out of range", "faults in v*: still out of range"),
        _RANGE,
        "an answer to an offset out of range has the range (KIP-392)",
    ),
    Difference(
        "Fetch",
        ("faults in v*: *", "a session of faults alone in v*: *", "a topic to come in v*: *", "a topic to go in v*: *"),
        {"responses.partitions.aborted_transactions": (None, {})},
        "null, as in every other answer without read_committed",
    ),
    Difference(
        "Fetch",
        ("a session of faults alone in v*: *", "a topic to come in v*: *", "a topic to go in v*: *", "faults in v*: *"),
        {"responses": MISSING},
        "a partition that does not exist is reported once (docs/decisions/0074-a-long-fetch-is-made-in-slices.md)",
    ),
    Difference(
        "Fetch",
        ("a topic to go in v*: it has gone",),
        {"responses.partitions.error_code": ("UNKNOWN_TOPIC_ID (100)", "UNKNOWN_TOPIC_OR_PARTITION (3)")},
        "a session by ids knows no name of a topic that is gone; Kafka's has kept it",
    ),
    Difference(
        "Fetch",
        ("turns in v*: a newcomer has no room",),
        {"responses": MISSING},
        "a full answer to a consumer does not name the remaining partitions, as KIP-227 says; they come with the next "
        "answer",
    ),
    Difference(
        "Fetch",
        ("turns in v*: there is room for it",),
        {"responses": ONLY_HERE, "responses.partitions": MISSING},
        "the partition comes with the first answer with room for it, between two partitions of the other topic",
    ),
)
