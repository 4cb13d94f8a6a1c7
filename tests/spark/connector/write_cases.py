"""Batch writes: columns, their types, options, and save modes."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from spark.connector.batch_cases import NAME_OF_NONE, WITHOUT_EFFECT
from spark.connector.cases import BothRefuse, Differs, Relation, SameRows

VALUE = "SELECT 'v' AS value"
ROWS = "SELECT CAST(id AS STRING) AS key, CONCAT('v', id) AS value FROM range(0, 20)"
BINARY = "SELECT CAST(CAST(id AS STRING) AS BINARY) AS key, CAST('x' AS BINARY) AS value FROM range(0, 20)"
HEADERS = (
    "array(named_struct('key', 'h', 'value', CAST('1' AS BINARY)),"
    " named_struct('key', 'n', 'value', CAST(NULL AS BINARY)))"
)
NO_HEADERS = "CAST(NULL AS array<struct<key:string,value:binary>>)"


@dataclass(frozen=True, slots=True)
class WriteCase:
    """Rows that a query makes, and the options of their write. TOPIC is a new topic of three partitions."""

    name: str
    query: str
    relation: Relation
    given: Mapping[str, str] = field(default_factory=dict)
    mode: str | None = "append"
    names_topic: bool = True
    """Whether the option `topic` is given."""

    @property
    def is_refused_by_connector(self) -> bool:
        refusal = isinstance(self.relation, Differs) and isinstance(self.relation.connectors, str)
        return refusal or isinstance(self.relation, BothRefuse)

    def __str__(self) -> str:
        return self.name


def _with_headers(headers: str) -> str:
    return f"SELECT 'v' AS value, {headers} AS headers"


COLUMNS = (
    WriteCase("a value", VALUE, SameRows(1)),
    WriteCase("texts", ROWS, SameRows(20)),
    WriteCase("bytes", BINARY, SameRows(20)),
    WriteCase("no rows", f"{VALUE} WHERE false", SameRows(0)),
    WriteCase("no value", "SELECT 'k' AS key", BothRefuse("column `value`")),
    WriteCase("a value in capitals", "SELECT 'v' AS VALUE", BothRefuse("column `value`")),
    WriteCase("a number as value", "SELECT 1 AS value", BothRefuse("'value' must be binary or string")),
    WriteCase("a value of no type", "SELECT NULL AS value", BothRefuse("'value' must be binary or string")),
    WriteCase("a number as key", "SELECT 1 AS key, 'v' AS value", BothRefuse("'key' must be binary or string")),
    WriteCase("a null value", "SELECT 'k' AS key, CAST(NULL AS STRING) AS value", SameRows(1)),
    WriteCase("a null key", "SELECT CAST(NULL AS STRING) AS key, 'v' AS value", SameRows(1)),
    WriteCase(
        "columns that are none", "SELECT 'v' AS value, 1 AS other, timestamp_millis(5) AS timestamp", SameRows(1)
    ),
    WriteCase("partitions", "SELECT 'v' AS value, CAST(id AS INT) AS partition FROM range(0, 3)", SameRows(3)),
    WriteCase("a null partition", "SELECT 'k' AS key, 'v' AS value, CAST(NULL AS INT) AS partition", SameRows(1)),
    WriteCase("a long as partition", "SELECT 'v' AS value, 1L AS partition", BothRefuse("'partition' must be int")),
    WriteCase(
        "a partition that is not there",
        "SELECT 'v' AS value, 17 AS partition",
        BothRefuse("names partition 17"),
        {"kafka.max.block.ms": "1500"},
    ),
    WriteCase("a partition below 0", "SELECT 'v' AS value, -1 AS partition", BothRefuse("names partition -1")),
    WriteCase("headers", _with_headers(HEADERS), SameRows(1)),
    WriteCase("headers, with the option of reads", _with_headers(HEADERS), SameRows(1), {"includeHeaders": "true"}),
    WriteCase("null headers", _with_headers(NO_HEADERS), SameRows(1)),
    WriteCase("a text as headers", _with_headers("'h'"), BothRefuse("'headers' must be array")),
    WriteCase("a map as headers", _with_headers("map('a', 'b')"), BothRefuse("'headers' must be array")),
    WriteCase(
        "headers of texts",
        _with_headers("array(named_struct('key', 'h', 'value', '1'))"),
        BothRefuse("'headers' must be array"),
    ),
    WriteCase(
        "a header without a key",
        _with_headers("array(named_struct('key', CAST(NULL AS STRING), 'value', CAST('1' AS BINARY)))"),
        BothRefuse("a header without a key"),
    ),
    WriteCase("a topic of each row", "SELECT 'v' AS value, 'TOPIC' AS topic", SameRows(1), names_topic=False),
    WriteCase("a topic with spaces around it", VALUE, SameRows(1), {"topic": " TOPIC "}),
    WriteCase("the option before the column", "SELECT 'v' AS value, 'elsewhere' AS topic", SameRows(1)),
    WriteCase("the option before a column of another type", "SELECT 'v' AS value, 1 AS topic", SameRows(1)),
    WriteCase("no topic", VALUE, BothRefuse("option topic, or a column `topic`"), names_topic=False),
    WriteCase(
        "a null topic",
        "SELECT 'v' AS value, CAST(NULL AS STRING) AS topic",
        BothRefuse("column 'topic' is null"),
        names_topic=False,
    ),
    WriteCase(
        "a number as topic", "SELECT 'v' AS value, 1 AS topic", BothRefuse("'topic' must be string"), names_topic=False
    ),
)

OPTIONS = (
    WriteCase("acks 0", ROWS, SameRows(20), {"kafka.acks": "0"}),
    WriteCase("acks 1", ROWS, SameRows(20), {"kafka.acks": "1"}),
    WriteCase("acks all", ROWS, SameRows(20), {"kafka.acks": "all"}),
    WriteCase("acks without a value", VALUE, BothRefuse("kafka.acks: is empty"), {"kafka.acks": ""}),
    WriteCase("acks 2", VALUE, BothRefuse("kafka.acks"), {"kafka.acks": "2"}),
    *(
        WriteCase(f"compression {codec}", ROWS, SameRows(20), {"kafka.compression.type": codec})
        for codec in ("gzip", "snappy", "lz4", "zstd")
    ),
    WriteCase("an unknown compression", VALUE, BothRefuse("kafka.compression.type"), {"kafka.compression.type": "rar"}),
    *(
        WriteCase(f"kafka.{name}", VALUE, BothRefuse(f"kafka.{name}: not supported"), {f"kafka.{name}": "x"})
        for name in ("key.serializer", "value.serializer", "interceptor.classes", "partitioner.class")
    ),
    WriteCase("no servers", VALUE, BothRefuse("kafka.bootstrap.servers"), {"kafka.bootstrap.servers": ""}),
    WriteCase(
        "a topic without a name", VALUE, BothRefuse("topic: is empty"), {"topic": "", "kafka.max.block.ms": "1500"}
    ),
    WriteCase(
        "an unknown topic", VALUE, BothRefuse("no such topic"), {"topic": "no such topic", "kafka.max.block.ms": "1500"}
    ),
    WriteCase(
        "options without effect on rows",
        ROWS,
        SameRows(20),
        {
            "subscribe": "x",
            "startingOffsets": "earliest",
            "kafka.linger.ms": "1",
            "kafka.nonsense": "1",
            "nonsense": "1",
        },
    ),
    WriteCase(
        "a row larger than the option",
        "SELECT repeat('x', 3000) AS value",
        BothRefuse("max.request.size"),
        {"kafka.max.request.size": "2000"},
    ),
    WriteCase("a size that is none", VALUE, BothRefuse("kafka.max.request.size"), {"kafka.max.request.size": "many"}),
    WriteCase("nonsense of the client", VALUE, Differs(WITHOUT_EFFECT, 1, "linger.ms"), {"kafka.linger.ms": "soon"}),
    WriteCase(
        "headers, perhaps",
        VALUE,
        Differs("checked in writes too, where it has no effect", "includeHeaders", 1),
        {"includeHeaders": "perhaps"},
    ),
    WriteCase(
        "a group without its prefix",
        VALUE,
        Differs(NAME_OF_NONE, "group.id: .*kafka.group.id", 1),
        {"group.id": "mine"},
    ),
    WriteCase(  # the connector's task waits for records that it cannot send, for two minutes by default
        "a transactional id",
        VALUE,
        BothRefuse("kafka.transactional.id: .*exactlyOnce=true"),
        {"kafka.transactional.id": "mine", "kafka.delivery.timeout.ms": "3000"},
    ),
)

MODES = (
    WriteCase("mode overwrite", VALUE, BothRefuse("append"), mode="overwrite"),
    WriteCase("mode ignore", VALUE, BothRefuse("(?i)ignore"), mode="ignore"),
    WriteCase(
        "no mode",
        VALUE,
        Differs(
            "Spark itself refuses errorifexists, its default, for a source in Python", "ErrorIfExists|errorifexists", 1
        ),
        mode=None,
    ),
    WriteCase(
        "mode errorifexists",
        VALUE,
        Differs(
            "Spark itself refuses errorifexists, its default, for a source in Python", "ErrorIfExists|errorifexists", 1
        ),
        mode="errorifexists",
    ),
)

WRITE = (*COLUMNS, *OPTIONS, *MODES)
