"""The Spark data source `tailrace`, and its columns.

Spark imports this module in several processes only to look up the name, so the modules of reading and writing are
imported when a read or a write begins.
"""

from typing import TYPE_CHECKING

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
from tailrace.spark.avro.formats import RecordFormats
from tailrace.spark.reading.source_options import parse_source_formats, parse_source_options
from tailrace.spark.worker import end_quietly_without_socket
from tailrace.spark.writing.sink_options import parse_sink_options

if TYPE_CHECKING:
    from tailrace.spark.avro.plan import Decoding

end_quietly_without_socket()  # in each process of Spark's that looks the source up, makes or plans it

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
"""The row of Spark's Kafka connector. Not as DDL text: parsing DDL needs a JVM, and Spark plans without a JVM."""

HEADERS = StructField("headers", ArrayType(_HEADER))


class TailraceDataSource(DataSource):
    """`spark.read|readStream.format("tailrace")` and `df.write|writeStream.format("tailrace")`.

    Options are the options of Spark's Kafka connector (`reading.source_options`, `writing.sink_options`); so is the row
    schema, unless keys or values are decoded (see `spark.avro`). Say `.schema("value binary, offset bigint")` to have
    only those columns decoded and moved.
    """

    @classmethod
    def name(cls) -> str:
        return "tailrace"

    def schema(self) -> StructType:
        include_headers = str(self.options.get("includeHeaders", "false")).lower() == "true"
        row = StructType([*ROW.fields, HEADERS]) if include_headers else ROW
        decoding = _decoding(parse_source_formats(dict(self.options)))
        return row if decoding is None else decoding.row(row)

    # Spark calls these four by keyword: the parameter names are part of the interface.

    def reader(self, schema: StructType) -> DataSourceReader:
        from tailrace.spark.reading.readers import TailraceReader

        options = parse_source_options(dict(self.options), streaming=False)
        return TailraceReader(schema, options, _checked(schema, _decoding(options.formats)))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        from tailrace.spark.reading.stream_reader import RefusedStreamReader, TailraceStreamReader

        try:
            options = parse_source_options(dict(self.options), streaming=True)
            return TailraceStreamReader(schema, options, _checked(schema, _decoding(options.formats)))
        except KafkaError as refusal:
            return RefusedStreamReader(refusal)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
        from tailrace.spark.writing.sink import OnceWriter, TailraceWriter

        if overwrite:
            raise KafkaError(ErrorCode.INVALID_REQUEST, "a log is only appended to; say mode('append')")
        options = parse_sink_options(dict(self.options))
        if options.transactions is None:
            return TailraceWriter(schema, options)
        return OnceWriter(schema, options, options.transactions)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamArrowWriter:
        from tailrace.spark.writing.sink import OnceStreamWriter, TailraceStreamWriter

        options = parse_sink_options(dict(self.options))
        if options.transactions is None:
            return TailraceStreamWriter(schema, options)
        return OnceStreamWriter(schema, options, options.transactions)


def _decoding(formats: RecordFormats) -> "Decoding | None":
    if not formats.columns:
        return None
    from tailrace.spark.avro.plan import plan_decoding

    return plan_decoding(formats)


def _checked(schema: StructType, decoding: "Decoding | None") -> "Decoding | None":
    """The decoding for this schema. Raises KafkaError(INVALID_REQUEST) for an unknown column or another type."""
    decoded = {} if decoding is None else decoding.fields()
    known = {field.name: field.dataType for field in [*ROW.fields, HEADERS]} | decoded
    for field in schema.fields:
        if field.name not in known:
            raise KafkaError(
                ErrorCode.INVALID_REQUEST, f"there is no column {field.name!r}; there are {', '.join(known)}"
            )
        if field.name in decoded and field.name in ROW.names:
            continue  # `narrowed_to` checks the column, which may have some of the fields
        if field.dataType.simpleString() != known[field.name].simpleString():
            raise KafkaError(
                ErrorCode.INVALID_REQUEST,
                f"column {field.name!r} is {known[field.name].simpleString()}, not {field.dataType.simpleString()}",
            )
    narrowed = None if decoding is None else decoding.narrowed_to(schema)
    return narrowed if narrowed is not None and narrowed.columns else None
