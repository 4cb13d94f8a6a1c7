"""The list of differences: logs, producers and readers."""

from interop.differential.differences import ANY, MISSING, ONLY_HERE, Difference, Values

_OK = "NONE (0)"
_UNKNOWN = "UNKNOWN_SERVER_ERROR (-1)"
_BAD_REQUEST = "INVALID_REQUEST (42)"
_NO_RANGE: Values = (ANY, -1)
_RANGE = {
    f"responses.partitions.{name}": _NO_RANGE for name in ("high_watermark", "last_stable_offset", "log_start_offset")
}
_PART = "responses.partition_responses"
_TAKEN_BY_KAFKA = {f"{_PART}.base_offset": (-1, ANY), f"{_PART}.log_start_offset": (-1, 0)}

_OFFSETS = (
    Difference(
        "ListOffsets",
        ("offset at an isolation level that is none",),
        {
            "topics.partitions.error_code": (_OK, _UNKNOWN),
            "topics.partitions.offset": (14, -1),
            "topics.partitions.leader_epoch": (0, -1),
        },
        "read as read_uncommitted",
    ),
    Difference(
        "ListOffsets",
        ("offset of a partition named twice",),
        {"topics.partitions": ONLY_HERE},
        "refused at each place at which it is named; Kafka refuses it once",
    ),
    Difference(
        "ListOffsets",
        ("largest timestamp of a log without records",),
        {
            "topics.partitions.offset": (-1, ANY),
            "topics.partitions.timestamp": (-1, ANY),
            "topics.partitions.leader_epoch": (-1, 0),
        },
        "Kafka names a record that is deleted already",
    ),
    Difference(
        "OffsetForLeaderEpoch",
        ("end of epoch -2 in *",),
        {"topics.partitions.leader_epoch": (-1, -2), "topics.partitions.end_offset": (-1, 0)},
        "there is no such epoch",
    ),
    Difference(
        "DeleteRecords",
        ("delete records of a partition named twice",),
        {
            "topics.partitions": ONLY_HERE,
            "topics.partitions.error_code": (_BAD_REQUEST, _OK),
            "topics.partitions.low_watermark": (-1, 2),
        },
        "it is not clear which offset is meant",
    ),
    Difference(
        "DeleteRecords",
        ("delete records of the metadata",),
        {"topics.partitions.error_code": ("POLICY_VIOLATION (44)", "UNKNOWN_TOPIC_OR_PARTITION (3)")},
        "KIP-630 says so; Kafka does not show the topic to clients",
    ),
    Difference(
        "DescribeProducers",
        ("producers of a partition named twice",),
        {"topics.partitions": MISSING},
        "answered once: a small request must not have a large answer",
    ),
)

_PRODUCE = (
    Difference(
        "Produce",
        (
            "a batch with bytes after the batch",
            "a batch with an attribute that is none",
            "a batch with the delete horizon",
        ),
        {f"{_PART}.error_code": ("INVALID_RECORD (87)", _OK), **_TAKEN_BY_KAFKA},
        "bytes and bits without a meaning are a fault of the sender, and would be given to every reader",
    ),
    Difference(
        "Produce",
        ("a batch with log append time claimed*",),
        {f"{_PART}.error_code": ("INVALID_TIMESTAMP (32)", _OK), **_TAKEN_BY_KAFKA},
        "only the broker may state its append time; Kafka clears the bit",
    ),
    Difference(
        "Produce",
        ("a batch with a producer without an epoch",),
        {
            f"{_PART}.error_code": ("INVALID_RECORD (87)", _OK),
            f"{_PART}.log_append_time_ms": (-1, ANY),
            **_TAKEN_BY_KAFKA,
        },
        "a producer with an id has an epoch",
    ),
    Difference(
        "Produce",
        (
            "a batch with a key longer than its record",
            "a batch with a null header key",
            "a batch with a record longer than its batch",
            "a batch with a record shorter than its content",
            "a batch with fewer records than counted*",
            "a batch with headers counted below 0",
            "a batch with more headers counted than there are",
        ),
        {f"{_PART}.record_errors": ONLY_HERE},
        "the record at fault is named (KIP-467); Kafka names records of its other rules alone",
    ),
    Difference(
        "Produce",
        ("a batch with gzip that is not",),
        {f"{_PART}.error_code": ("INVALID_RECORD (87)", _UNKNOWN)},
        "the batch is wrong, not the server",
    ),
    Difference(
        "Produce",
        ("a batch with a codec that is none", "a batch with codec 7"),
        {f"{_PART}.error_code": ("UNSUPPORTED_COMPRESSION_TYPE (76)", _UNKNOWN)},
        "the request is wrong, not the server",
    ),
    Difference(
        "Produce",
        ("a batch with a transactional batch without a producer",),
        {f"{_PART}.error_code": ("INVALID_RECORD (87)", "TRANSACTIONAL_ID_AUTHORIZATION_FAILED (53)")},
        "without a producer a batch is in no transaction: it is wrong from any client",
    ),
    Difference(
        "Produce",
        ("*",),
        {f"{_PART}.log_start_offset": (-1, ANY)},
        "a refusal does not have it; producers use it only with UNKNOWN_PRODUCER_ID, which neither server sends",
        beside_error=True,
    ),
    Difference(
        "Produce",
        ("*duplicate*", "a stranger *", "seeded *"),
        {f"{_PART}.log_append_time_ms": (-1, ANY)},
        "the topic has CreateTime; Kafka states a duplicate's own timestamp as its append time",
    ),
)

_TRANSACTIONS = (
    Difference(
        "DescribeTransactions",
        ("transactions are described",),
        {"transaction_states": MISSING},
        "a transactional id that is named twice is described once: a small request must not have a large answer",
    ),
    Difference(
        "ListTransactions",
        ("transactions by a pattern",),
        {"error_code": ("INVALID_REGULAR_EXPRESSION (128)", _OK), "transaction_states": MISSING},
        "regular expressions are not resolved: one of a client's can keep the event loop busy for ever",
    ),
)

_FETCH = (
    Difference(
        "Fetch",
        ("*from offset *", "after epoch *", "seeded *"),
        _RANGE,
        "an answer to an offset out of range has the range (KIP-392)",
    ),
    Difference(
        "Fetch",
        ("*",),
        {"responses.partitions.records.bytes of a cut batch": (0, ANY)},
        "batches are sent whole: half of one helps no reader",
    ),
    Difference(
        "Fetch",
        ("room behind a batch that does not fit", "seeded *"),
        {"responses.partitions.records": ONLY_HERE},
        "the room goes to the next partition; Kafka fills it with a part of the batch",
    ),
    Difference(
        "Fetch",
        ("at most -1 bytes*",),
        {
            "responses.partitions.error_code": (_OK, _UNKNOWN),
            "responses.partitions.records": (ANY, ANY),
            **_RANGE,
        },
        "a negative limit is taken for 0",
    ),
    Difference(
        "Fetch",
        ("an isolation level that is none",),
        {
            "responses.partitions.error_code": (_OK, _UNKNOWN),
            "responses.partitions.high_watermark": _NO_RANGE,
            "responses.partitions.last_stable_offset": _NO_RANGE,
            "responses.partitions.aborted_transactions": (None, {}),
            "responses.partitions.records": ONLY_HERE,
            "error_code": (_OK, _UNKNOWN),
            "responses": ONLY_HERE,
        },
        "read as read_uncommitted",
    ),
    Difference(
        "Fetch",
        ("*partition*", "an unknown topic", "a topic with an invalid name", "seeded *"),
        {"responses.partitions.aborted_transactions": (None, {})},
        "null, as in every other answer without read_committed",
    ),
    Difference(
        "Fetch",
        ("no room, read committed", "seeded *"),
        {"responses.partitions.aborted_transactions": ({}, None)},
        "empty, as in every other answer with read_committed",
    ),
)

DATA = (*_OFFSETS, *_PRODUCE, *_TRANSACTIONS, *_FETCH)
