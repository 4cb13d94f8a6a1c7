"""The list of differences: conversations of transactional producers."""

from interop.differential.differences import ANY, Difference

TRANSACTIONS: tuple[Difference, ...] = (
    Difference(
        "Fetch",
        ("*, older, *: the records of partition *",),
        {"responses.partitions.records.bytes behind the marker": (8, 0)},
        "the number of the decision, which shows that a marker is late; readers skip it",
    ),
    Difference(
        "InitProducerId",
        (
            "exhausted, aborted by its own producer: it goes on",
            "exhausted, aborted by its own producer: it has not heard",
        ),
        {
            "error_code": ("NONE (0)", "UNKNOWN_SERVER_ERROR (-1)"),
            "producer_id": (ANY, -1),
            "producer_epoch": (0, -1),
        },
        "the producer gets another id; with Kafka its transactional id cannot be used any more",
    ),
)
