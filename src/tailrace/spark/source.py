"""The Spark data source `tailrace`, and its columns.

Spark imports this module in several processes only to look up the name, so the modules of reading and writing are
imported when a read or a write begins.
"""

from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceReader,
    DataSourceStreamArrowWriter,
    DataSourceStreamReader,
)
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from tailrace.model.errors import ErrorCode, KafkaError
from tailrace.spark.sink_options import parse_sink_options
from tailrace.spark.source_options import parse_source_options

_HEADER = StructType([StructField("key", StringType()), StructField("value", BinaryType())])

ROW = StructType(
    [
        StructField("key", BinaryType()),
        StructField("value", BinaryType()),
        StructField("topic", StringType()),
        StructField("partition", IntegerType()),
        StructField("offset", LongType()),
        StructField("timestamp", TimestampType()),
        StructField("timestampType", IntegerType()),
    ]
)
"""The row of Spark's Kafka connector. Not as DDL text: parsing it needs a JVM, and Spark plans without one."""

HEADERS = StructField("headers", ArrayType(_HEADER))


class TailraceDataSource(DataSource):
    """`spark.read|readStream.format("tailrace")` and `df.write|writeStream.format("tailrace")`.

    Options are those of Spark's Kafka connector (see `spark.source_options` and `spark.sink_options`); so is the row
    schema. Say `.schema("value binary, offset bigint")` to have only those columns decoded and moved.
    """

    @classmethod
    def name(cls) -> str:
        return "tailrace"

    def schema(self) -> StructType:
        include_headers = str(self.options.get("includeHeaders", "false")).lower() == "true"
        return StructType([*ROW.fields, HEADERS]) if include_headers else ROW

    # Spark calls these four by keyword: the parameter names are part of the interface.

    def reader(self, schema: StructType) -> DataSourceReader:
        from tailrace.spark.readers import TailraceReader

        return TailraceReader(_checked(schema), parse_source_options(dict(self.options), streaming=False))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802  # Spark's name
        from tailrace.spark.stream_reader import RefusedStreamReader, TailraceStreamReader

        try:
            return TailraceStreamReader(_checked(schema), parse_source_options(dict(self.options), streaming=True))
        except KafkaError as refusal:
            return RefusedStreamReader(refusal)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
        from tailrace.spark.sink import OnceWriter, TailraceWriter

        if overwrite:
            raise KafkaError(ErrorCode.INVALID_REQUEST, "a log is only appended to; say mode('append')")
        options = parse_sink_options(dict(self.options))
        if options.transactions is None:
            return TailraceWriter(schema, options)
        return OnceWriter(schema, options, options.transactions)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamArrowWriter:  # noqa: N802
        from tailrace.spark.sink import OnceStreamWriter, TailraceStreamWriter

        options = parse_sink_options(dict(self.options))
        if options.transactions is None:
            return TailraceStreamWriter(schema, options)
        return OnceStreamWriter(schema, options, options.transactions)


def _checked(schema: StructType) -> StructType:
    """The schema. Raises KafkaError(INVALID_REQUEST) for an unknown column or another type."""
    known = {field.name: field.dataType for field in [*ROW.fields, HEADERS]}
    for field in schema.fields:
        if field.name not in known:
            raise KafkaError(
                ErrorCode.INVALID_REQUEST, f"there is no column {field.name!r}; there are {', '.join(known)}"
            )
        if field.dataType.simpleString() != known[field.name].simpleString():
            raise KafkaError(
                ErrorCode.INVALID_REQUEST,
                f"column {field.name!r} is {known[field.name].simpleString()}, not {field.dataType.simpleString()}",
            )
    return schema
