"""Batch reads: every option of the connector's documentation, with a value that has a meaning, nonsense, and more."""

import json

from spark.connector.cases import BothRefuse, Case, Differs, NumberOfTasks, SameRows, of_one, offsets
from spark.connector.topics import CODECS, COMMITTED, COMPACTED, CUT, EMPTY, OPEN, ORDERS, ORDERS_EU, STAMPED

ALL = 12
"""The records of `orders`."""

JAVA_PATTERN = "patterns are Python's: what only Java knows is refused, with the place in the pattern"
WITHOUT_EFFECT = "the Java client's own settings have no meaning here: ignored, each with a warning"
TYPO = "a number that is no whole number is a mistake: Jackson cuts a fraction off, and takes null for 0"
TWICE = "two offsets of one partition are a mistake: the connector takes the last"
WITHOUT_PROTECTION = "a setting of security is refused, not ignored, where it would protect nothing"
NAME_OF_NONE = "not the name of an option: refused with the name that is meant"
LOOK_UPS = "look-ups of offsets are repeated until their time is over: the options are ignored, with a warning"

CUT_BY_RECORDS = "each task has as many records at most; the connector's batch reads heed it beside minPartitions only"

SUBSCRIPTIONS = (
    Case("a topic", SameRows(ALL)),
    Case("topics with spaces and repeats", SameRows(ALL + 3), topic=f"{ORDERS}, {ORDERS_EU},,{ORDERS}"),
    Case("the name of an option in capitals", SameRows(ALL), {"SUBSCRIBE": ORDERS}, topic=None),
    Case("no topic", BothRefuse("subscribe"), topic=" , "),
    Case("an unknown topic", BothRefuse("nowhere"), topic=f"{ORDERS},nowhere"),
    Case("a name that no topic can have", BothRefuse("or ders"), topic="or ders"),
    Case("nothing to read", BothRefuse("subscribe: .* none is"), topic=None),
    Case("two ways at once", BothRefuse("assign and subscribe are"), {"assign": json.dumps({ORDERS: [0]})}),
    Case("a topic and a pattern", BothRefuse("subscribe and subscribePattern are"), {"subscribePattern": ORDERS}),
    Case("partitions", SameRows(4 + 3), {"assign": json.dumps({ORDERS: [1], ORDERS_EU: [0]})}, topic=None),
    Case("no partitions", SameRows(0), {"assign": "{}"}, topic=None),
    Case("partitions of an unknown topic", BothRefuse("nowhere"), {"assign": '{"nowhere": [0]}'}, topic=None),
    Case("partitions that are no JSON", BothRefuse("assign"), {"assign": ORDERS}, topic=None),
    Case("partitions that are no list", BothRefuse("assign"), {"assign": json.dumps({ORDERS: 0})}, topic=None),
    Case(
        "a known and an unknown partition",
        Differs("a partition that is missing is a mistake: the connector leaves it out in silence", "assign: .*-7", 8),
        {"assign": json.dumps({ORDERS: [0, 7]})},
        topic=None,
    ),
    Case("a pattern", SameRows(ALL + 3), {"subscribePattern": "orders.*"}, topic=None),
    Case("a pattern for a part of the name", SameRows(ALL + 3), {"subscribePattern": " rders"}, topic=None),
    Case("a pattern for the whole name", SameRows(ALL), {"subscribePattern": "^(orders|empty)$"}, topic=None),
    Case("a pattern without a topic", SameRows(0), {"subscribePattern": "nowhere.*"}, topic=None),
    Case("a broken pattern", BothRefuse("subscribePattern"), {"subscribePattern": "["}, topic=None),
    Case("an empty pattern", BothRefuse("subscribePattern"), {"subscribePattern": " "}, topic=None),
    Case(
        "a pattern with Java's quotes",
        Differs(JAVA_PATTERN, "subscribePattern: not a Python", ALL + 3),
        {"subscribePattern": r"\Qorders\E"},
        topic=None,
    ),
    Case(
        "a pattern with a Python name",
        Differs(JAVA_PATTERN, ALL + 3, "Unknown inline modifier"),
        {"subscribePattern": "(?P<name>orders)"},
        topic=None,
    ),
)

CONTENTS = (
    Case("headers", SameRows(ALL), {"includeHeaders": "TRUE"}),
    Case("no headers", SameRows(ALL), {"includeHeaders": "false"}),
    Case("headers of no record", SameRows(0), {"includeHeaders": "true"}, topic=EMPTY),
    Case("headers, perhaps", BothRefuse("includeHeaders"), {"includeHeaders": "yes"}),
    Case("the time of the log", SameRows(3), topic=STAMPED),
    Case("all codecs", SameRows(15), topic=CODECS),
    Case("a compacted topic", SameRows(7), topic=COMPACTED),
    Case(
        "a range that begins in a gap",
        SameRows(2),
        {"startingOffsets": of_one(7, topic=COMPACTED), "endingOffsets": of_one(27, topic=COMPACTED)},
        topic=COMPACTED,
    ),
    Case(
        "a range that is a gap",
        SameRows(0),
        {"startingOffsets": of_one(7, topic=COMPACTED), "endingOffsets": of_one(12, topic=COMPACTED)},
        topic=COMPACTED,
    ),
    Case("aborted records by default", SameRows(6), topic=COMMITTED),
    Case("aborted records", SameRows(6), {"kafka.isolation.level": "read_uncommitted"}, topic=COMMITTED),
    Case("committed records", SameRows(4), {"kafka.isolation.level": "read_committed"}, topic=COMMITTED),
    Case("an open transaction", SameRows(8), topic=OPEN),
    Case("what precedes an open transaction", SameRows(4), {"kafka.isolation.level": "read_committed"}, topic=OPEN),
    Case("an unknown isolation", BothRefuse("kafka.isolation.level"), {"kafka.isolation.level": "serializable"}),
    Case("an isolation without a value", BothRefuse("kafka.isolation.level: is empty"), {"kafka.isolation.level": ""}),
    Case(
        "an isolation in capitals",
        Differs("taken for what it says: Kafka's client knows small letters", 4, "must be one of|isolation.level"),
        {"kafka.isolation.level": "READ_COMMITTED"},
        topic=COMMITTED,
    ),
    Case(
        "an end behind an open transaction",
        BothRefuse("no record at or after offset 9"),
        {
            "kafka.isolation.level": "read_committed",
            "endingOffsets": of_one(11, topic=OPEN),
            "kafkaConsumer.pollTimeoutMs": "1000",
        },
        topic=OPEN,
    ),
)

OFFSETS = (
    Case("from the start", SameRows(ALL), {"startingOffsets": "EARLIEST"}),
    Case("from the end", BothRefuse("startingOffsets"), {"startingOffsets": "latest"}),
    Case("from offsets", SameRows(5 + 3), {"startingOffsets": offsets(3, 1)}),
    Case("from the start by number", SameRows(8 + 2), {"startingOffsets": offsets(-2, 2)}),
    Case("from the end by number", BothRefuse("startingOffsets"), {"startingOffsets": offsets(-1, 0)}),
    Case("from an offset that is none", BothRefuse("startingOffsets"), {"startingOffsets": offsets(-3, 0)}),
    Case(
        "from offsets of some partitions",
        BothRefuse("startingOffsets: .*orders-1"),
        {"startingOffsets": of_one(3, topic=ORDERS)},
    ),
    Case(
        "from offsets of another topic",
        BothRefuse("startingOffsets: .*orders-eu-0"),
        {"startingOffsets": json.dumps({ORDERS: {"0": 0, "1": 0}, ORDERS_EU: {"0": 0}})},
    ),
    Case("from no value", BothRefuse("startingOffsets: is empty"), {"startingOffsets": ""}),
    Case(
        "from two offsets of a partition",
        Differs(TWICE, "startingOffsets: names '0' twice", 3 + 4),
        {"startingOffsets": f'{{"{ORDERS}": {{"0": 0, "0": 5, "1": 0}}}}'},
    ),
    Case(
        "from offsets of a partition by two numbers",
        Differs(TWICE, "startingOffsets: names orders-0 twice", 3 + 4),
        {"startingOffsets": f'{{"{ORDERS}": {{"0": 0, "00": 5, "1": 0}}}}'},
    ),
    Case(
        "from an offset of more than 64 bits",
        BothRefuse("startingOffsets: 'orders': '0'"),
        {"startingOffsets": offsets(2**63, 0)},
    ),
    Case("from a word", BothRefuse("startingOffsets"), {"startingOffsets": "soon"}),
    Case("from offsets that are texts", BothRefuse("startingOffsets"), {"startingOffsets": offsets("3", "1")}),
    Case("from a fraction", Differs(TYPO, "startingOffsets: .*1.5", 11), {"startingOffsets": offsets(1.5, 0)}),
    Case("from null", Differs(TYPO, "startingOffsets: .*None", ALL), {"startingOffsets": offsets(None, 0)}),
    Case("from the ends of the logs", SameRows(0), {"startingOffsets": offsets(8, 4)}),
    Case("from behind the end", BothRefuse("startingOffsets: orders-0"), {"startingOffsets": offsets(9, 4)}),
    Case(
        "from behind the end, loss allowed",
        BothRefuse("startingOffsets: orders-0"),
        {"startingOffsets": offsets(9, 4), "failOnDataLoss": "false"},
    ),
    Case("to the end", SameRows(ALL), {"endingOffsets": "latest"}),
    Case("to the start", BothRefuse("endingOffsets"), {"endingOffsets": "earliest"}),
    Case("to offsets", SameRows(5 + 2), {"endingOffsets": offsets(5, 2)}),
    Case("to the end by number", SameRows(8 + 2), {"endingOffsets": offsets(-1, 2)}),
    Case("to the start by number", BothRefuse("endingOffsets"), {"endingOffsets": offsets(-2, 2)}),
    Case("to an offset that is none", BothRefuse("endingOffsets"), {"endingOffsets": offsets(-3, 2)}),
    Case("to offsets of some partitions", BothRefuse("endingOffsets"), {"endingOffsets": of_one(3, topic=ORDERS)}),
    Case("to half a JSON", BothRefuse("endingOffsets"), {"endingOffsets": "{"}),
    Case("between offsets", SameRows(3 + 4), {"startingOffsets": offsets(2, -2), "endingOffsets": offsets(5, -1)}),
    Case("between the same offsets", SameRows(0), {"startingOffsets": offsets(2, 2), "endingOffsets": offsets(2, 2)}),
    Case(
        "an end before the start",
        BothRefuse("endingOffsets: orders-0"),
        {"startingOffsets": offsets(5, 0), "endingOffsets": offsets(2, 1)},
    ),
    Case(
        "ends of other partitions",
        BothRefuse("endingOffsets"),
        {"startingOffsets": offsets(5, 0), "endingOffsets": of_one(6, topic=ORDERS)},
    ),
    Case(
        "an end that the log has not reached",
        BothRefuse("no record at or after offset 8"),
        {"endingOffsets": offsets(12, 4), "kafkaConsumer.pollTimeoutMs": "1000"},
    ),
    Case(
        "an end that the log has not reached, loss allowed",
        SameRows(ALL),
        {"endingOffsets": offsets(12, 4), "failOnDataLoss": "false", "kafkaConsumer.pollTimeoutMs": "5000"},
    ),
    Case("deleted records by default", SameRows(6), topic=CUT),
    Case("from a deleted record", BothRefuse("failOnDataLoss"), {"startingOffsets": of_one(2, topic=CUT)}, topic=CUT),
    Case(
        "from a deleted record, loss allowed",
        SameRows(6),
        {"startingOffsets": of_one(2, topic=CUT), "failOnDataLoss": "FALSE"},
        topic=CUT,
    ),
    Case(
        "deleted records alone",
        BothRefuse("failOnDataLoss"),
        {"startingOffsets": of_one(1, topic=CUT), "endingOffsets": of_one(3, topic=CUT)},
        topic=CUT,
    ),
    Case(
        "deleted records alone, loss allowed",
        SameRows(0),
        {"startingOffsets": of_one(1, topic=CUT), "endingOffsets": of_one(3, topic=CUT), "failOnDataLoss": "false"},
        topic=CUT,
    ),
    Case("loss allowed, perhaps", BothRefuse("failOnDataLoss"), {"failOnDataLoss": "maybe"}),
)

LATEST_INSTEAD = {"startingOffsetsByTimestampStrategy": "LATEST"}

TIMES = (
    Case("from a time", SameRows(5 + 3), {"startingTimestamp": " 3500 "}),
    Case(
        "from a time after all records", BothRefuse("startingOffsetsByTimestampStrategy"), {"startingTimestamp": "9999"}
    ),
    Case("from a time after all records, or the end", SameRows(0), {"startingTimestamp": "9999", **LATEST_INSTEAD}),
    Case("from a time after some records, or the end", SameRows(1), {"startingTimestamp": "8000", **LATEST_INSTEAD}),
    Case(
        "from a time, in an empty topic",
        BothRefuse("startingOffsetsByTimestampStrategy"),
        {"startingTimestamp": "1"},
        topic=EMPTY,
    ),
    Case(
        "from a time, or the end, in an empty topic",
        SameRows(0),
        {"startingTimestamp": "1", **LATEST_INSTEAD},
        topic=EMPTY,
    ),
    Case("from a time without a value", BothRefuse("startingTimestamp: is empty"), {"startingTimestamp": ""}),
    Case("from noon", BothRefuse("startingTimestamp"), {"startingTimestamp": "noon"}),
    Case(
        "from ten minutes ago",
        Differs("now-10m is Tailrace's own", 3, "single long value"),
        {"startingTimestamp": "now-10m"},
        topic=STAMPED,
    ),
    Case(
        "from before 1970",
        Differs(
            "no time: -1 and -2 are ends of the log in the protocol, which the connector hands on",
            "startingTimestamp",
            0,
        ),
        {"startingTimestamp": "-1"},
    ),
    Case("to a time", SameRows(3 + 2), {"endingTimestamp": "4000"}),
    Case("to a time after all records", SameRows(ALL), {"endingTimestamp": "9999"}),
    Case("to noon", BothRefuse("endingTimestamp"), {"endingTimestamp": "noon"}),
    Case("between times", SameRows(2 + 1), {"startingTimestamp": "2000", "endingTimestamp": "4000"}),
    Case(
        "times the wrong way round",
        BothRefuse("endingTimestamp: orders-0"),
        {"startingTimestamp": "4000", "endingTimestamp": "2000"},
    ),
    Case("from offsets to a time", SameRows(3 + 1), {"startingOffsets": offsets(1, 1), "endingTimestamp": "5000"}),
    Case("from a time per partition", SameRows(6 + 4), {"startingOffsetsByTimestamp": offsets(3000, 1000)}),
    Case(
        "from times of some partitions",
        BothRefuse("startingOffsetsByTimestamp: .*orders-1"),
        {"startingOffsetsByTimestamp": of_one(3000, topic=ORDERS)},
    ),
    Case(
        "from times that are no JSON", BothRefuse("startingOffsetsByTimestamp"), {"startingOffsetsByTimestamp": "noon"}
    ),
    Case(
        "from an early and a late time",
        BothRefuse("startingOffsetsByTimestampStrategy"),
        {"startingOffsetsByTimestamp": offsets(9000, 1000)},
    ),
    Case(
        "from an early and a late time, or the end",
        SameRows(4),
        {"startingOffsetsByTimestamp": offsets(9000, 1000), **LATEST_INSTEAD},
    ),
    Case(
        "from a time and -1",
        Differs(
            "no time: -1 and -2 are ends of the log in the protocol, which the connector hands on",
            "startingOffsetsByTimestamp: orders-0",
            4,
        ),
        {"startingOffsetsByTimestamp": offsets(-1, 1000)},
    ),
    Case("to a time per partition", SameRows(2 + 4), {"endingOffsetsByTimestamp": offsets(3000, 9000)}),
    Case(
        "to times of some partitions",
        BothRefuse("endingOffsetsByTimestamp: .*orders-1"),
        {"endingOffsetsByTimestamp": of_one(3000, topic=ORDERS)},
    ),
    Case("to times that are no JSON", BothRefuse("endingOffsetsByTimestamp"), {"endingOffsetsByTimestamp": "noon"}),
    Case(
        "times per partition the wrong way round",
        BothRefuse("endingOffsetsByTimestamp: orders-0"),
        {"startingOffsetsByTimestamp": offsets(4000, 1), "endingOffsetsByTimestamp": offsets(2000, 2000)},
    ),
    Case(
        "an unknown strategy",
        BothRefuse("startingOffsetsByTimestampStrategy"),
        {"startingOffsetsByTimestampStrategy": "earliest"},
    ),
    Case(
        "the time precedes all",
        SameRows(2 + 1),
        {"startingTimestamp": "7000", "startingOffsetsByTimestamp": offsets(1000, 1000), "startingOffsets": "latest"},
    ),
    Case(
        "times precede offsets",
        SameRows(2 + 1),
        {"startingOffsetsByTimestamp": offsets(7000, 7000), "startingOffsets": "nonsense"},
    ),
    Case(
        "the time of the end precedes all",
        SameRows(1 + 1),
        {"endingTimestamp": "2000", "endingOffsetsByTimestamp": offsets(5000, 5000), "endingOffsets": offsets(7, 3)},
    ),
)

TASKS = (
    Case("tasks", SameRows(ALL), {"minPartitions": "5"}, tasks=NumberOfTasks(5, 5)),
    Case("no tasks", BothRefuse("minPartitions"), {"minPartitions": "0"}),
    Case("few tasks", BothRefuse("minPartitions"), {"minPartitions": "few"}),
    Case(
        "records of a task", SameRows(ALL), {"maxRecordsPerPartition": "3"}, tasks=NumberOfTasks(5, 2, CUT_BY_RECORDS)
    ),
    Case("no records of a task", BothRefuse("maxRecordsPerPartition"), {"maxRecordsPerPartition": "0"}),
    Case("few records of a task", BothRefuse("maxRecordsPerPartition"), {"maxRecordsPerPartition": "few"}),
    Case(
        "tasks and their records",
        SameRows(ALL),
        {"minPartitions": "3", "maxRecordsPerPartition": "2"},
        tasks=NumberOfTasks(6, 6),
    ),
    Case("a wait of no time", BothRefuse("kafkaConsumer.pollTimeoutMs"), {"kafkaConsumer.pollTimeoutMs": "0"}),
    Case(
        "a wait that is no number", BothRefuse("kafkaConsumer.pollTimeoutMs"), {"kafkaConsumer.pollTimeoutMs": "soon"}
    ),
)

CLIENT = (
    Case(
        "options without effect on rows",
        SameRows(ALL),
        {
            "groupIdPrefix": "mine",
            "kafka.group.id": "mine",
            "fetchOffset.numRetries": "5",
            "fetchOffset.retryIntervalMs": "20",
            "kafkaConsumer.pollTimeoutMs": "60000",
            "maxOffsetsPerTrigger": "1",
            "minOffsetsPerTrigger": "1",
            "maxTriggerDelay": "1s",
            "topic": "elsewhere",
            "nonsense": "1",
            "kafka.nonsense": "1",
            "kafka.client.id": "mine",
            "kafka.client.rack": "a",
            "kafka.max.poll.records": "1",
            "kafka.max.partition.fetch.bytes": "10",
            "kafka.security.protocol": "PLAINTEXT",
        },
    ),
    *(
        Case(f"kafka.{name}", BothRefuse(f"kafka.{name}: not supported"), {f"kafka.{name}": "x"})
        for name in (
            "auto.offset.reset",
            "key.deserializer",
            "value.deserializer",
            "enable.auto.commit",
            "interceptor.classes",
        )
    ),
    Case("no servers", BothRefuse("kafka.bootstrap.servers"), {"kafka.bootstrap.servers": ""}),
    Case(
        "servers without a port", BothRefuse("kafka.bootstrap.servers: .*HOST:PORT"), {"kafka.bootstrap.servers": "a"}
    ),
    Case("servers of a plain listener", SameRows(ALL), {"kafka.bootstrap.servers": "PLAINTEXT://SERVERS"}),
    Case(
        "servers of another listener",
        Differs(WITHOUT_PROTECTION, "kafka.bootstrap.servers: .*HOST:PORT", ALL),
        {"kafka.bootstrap.servers": "SASL_SSL://SERVERS"},
    ),
    Case("no rack", SameRows(ALL), {"kafka.client.rack": ""}),
    Case("an unknown protocol", BothRefuse("kafka.security.protocol"), {"kafka.security.protocol": "TELEPATHY"}),
    Case(
        "limits that contradict",
        BothRefuse("minOffsetsPerTrigger"),
        {"minOffsetsPerTrigger": "5", "maxOffsetsPerTrigger": "2"},
    ),
    Case(
        "a group without its prefix",
        Differs(NAME_OF_NONE, "group.id: .*kafka.group.id", ALL),
        {"group.id": "mine"},
    ),
    Case("few look-ups", Differs(LOOK_UPS, ALL, "few"), {"fetchOffset.numRetries": "few"}),
    Case("look-ups soon", Differs(LOOK_UPS, ALL, "soon"), {"fetchOffset.retryIntervalMs": "soon"}),
    Case(
        "nonsense of the client", Differs(WITHOUT_EFFECT, ALL, "max.poll.records"), {"kafka.max.poll.records": "many"}
    ),
    Case(
        "a limit of streams that is no number",
        Differs("checked in batch reads too", "maxOffsetsPerTrigger", ALL),
        {"maxOffsetsPerTrigger": "few"},
    ),
    Case(
        "a mechanism of SASL",
        Differs(WITHOUT_PROTECTION, "kafka.sasl.mechanism", ALL),
        {"kafka.sasl.mechanism": "PLAIN"},
    ),
    Case(
        "a store of SSL",
        Differs(WITHOUT_PROTECTION, "kafka.ssl.truststore", ALL),
        {"kafka.ssl.truststore.location": "/nowhere"},
    ),
)

BATCH = (*SUBSCRIPTIONS, *CONTENTS, *OFFSETS, *TIMES, *TASKS, *CLIENT)
