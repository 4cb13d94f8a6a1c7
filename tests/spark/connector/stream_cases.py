"""Streaming reads, run once to the present end: what batch reads do not have, and what streams may do otherwise."""

import json

from spark.connector.batch_cases import LATEST_INSTEAD
from spark.connector.cases import BothRefuse, Case, Differs, SameRows, of_one, offsets
from spark.connector.topics import COMPACTED, CUT, EMPTY, OPEN, ORDERS

ALL = 12
FIRST = {"startingOffsets": "earliest"}

LIMIT = (
    "maxOffsetsPerTrigger: a batch has as many records as the limit allows; the connector rounds the share of each "
    "partition down, but to 1 at least, so that batches are smaller, or larger if partitions outnumber the limit"
)
MADE_ANEW = (
    "a topic that is deleted and created again is noticed by its id, and failOnDataLoss=false goes on at its start; "
    "the connector knows no ids: it notices a shorter log alone, goes to its end then, and skips the first of a "
    "longer one"
)
NO_LIMIT = "no batch could have a record: the connector stands still without a word"

STREAM = (
    Case("from the end by default", SameRows(0)),
    Case("from the start", SameRows(ALL), FIRST),
    Case("from offsets", SameRows(5), {"startingOffsets": offsets(3, -1)}),
    Case(
        "topics of a pattern from a time, or the end",
        SameRows(1 + 3),
        {"subscribePattern": "rders", "startingTimestamp": "8000", "startingOffsets": "latest", **LATEST_INSTEAD},
        topic=None,
    ),
    Case(
        "partitions from a time each",
        SameRows(2),
        {"assign": json.dumps({ORDERS: [1]}), "startingOffsetsByTimestamp": json.dumps({ORDERS: {"1": 5000}})},
        topic=None,
    ),
    Case("an empty topic", SameRows(0), {**FIRST, "includeHeaders": "true"}, topic=EMPTY),
    Case("a compacted topic", SameRows(7), FIRST, topic=COMPACTED),
    Case(
        "what precedes an open transaction",
        SameRows(4),
        {**FIRST, "kafka.isolation.level": "read_committed"},
        topic=OPEN,
    ),
    Case(
        "from a deleted record, loss allowed",
        SameRows(6),
        {"startingOffsets": of_one(1, topic=CUT), "failOnDataLoss": "false"},
        topic=CUT,
    ),
    Case(
        "all that changes no row",
        SameRows(ALL),
        {
            **FIRST,
            "includeHeaders": "true",
            "minPartitions": "5",
            "maxRecordsPerPartition": "3",
            "minOffsetsPerTrigger": "100",
            "maxTriggerDelay": "10000",
            "kafka.group.id": "streamed",
            "groupIdPrefix": "mine",
            "fetchOffset.numRetries": "4",
            "fetchOffset.retryIntervalMs": "20",
            "kafkaConsumer.pollTimeoutMs": "60000",
        },
    ),
    Case("to an offset", BothRefuse("endingOffsets"), {"endingOffsets": "latest"}),
    Case(
        "to a time per partition", BothRefuse("endingOffsetsByTimestamp"), {"endingOffsetsByTimestamp": offsets(1, 1)}
    ),
    Case(
        "to a time",
        Differs("a stream has no end: the connector ignores this one of three options", "endingTimestamp", ALL),
        {**FIRST, "endingTimestamp": "4000"},
    ),
    Case(
        "a group without a name",
        Differs("a group without a name shows no progress: the connector reads in it", "kafka.group.id: is empty", ALL),
        {**FIRST, "kafka.group.id": ""},
    ),
    Case("a limit that is no number", BothRefuse("maxOffsetsPerTrigger"), {"maxOffsetsPerTrigger": "few"}),
    Case("a limit of no record", Differs(NO_LIMIT, "maxOffsetsPerTrigger", 0), {**FIRST, "maxOffsetsPerTrigger": "0"}),
    Case("a minimum that is no number", BothRefuse("minOffsetsPerTrigger"), {"minOffsetsPerTrigger": "few"}),
    Case(
        "a minimum of no record",
        Differs("0 is the default: to say it is taken for a mistake", "minOffsetsPerTrigger", ALL),
        {**FIRST, "minOffsetsPerTrigger": "0"},
    ),
    Case(
        "a minimum above the limit",
        BothRefuse("minOffsetsPerTrigger"),
        {"minOffsetsPerTrigger": "6", "maxOffsetsPerTrigger": "3"},
    ),
    Case(
        "a delay that is no time",
        BothRefuse("maxTriggerDelay"),
        {"minOffsetsPerTrigger": "2", "maxTriggerDelay": "soon"},
    ),
    Case("from a deleted record", BothRefuse("failOnDataLoss"), {"startingOffsets": of_one(1, topic=CUT)}, topic=CUT),
    Case("from behind the end", BothRefuse("orders-0 ends at offset 8, before 9"), {"startingOffsets": offsets(9, 4)}),
    Case(
        "from behind the end, loss allowed", SameRows(0), {"startingOffsets": offsets(9, 4), "failOnDataLoss": "false"}
    ),
)
