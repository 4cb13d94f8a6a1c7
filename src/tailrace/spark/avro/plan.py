"""The columns to decode, planned on the driver and pickled to the workers: the reader's schemas are fixed here."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

from pyspark.sql.types import DataType, StructField, StructType

from tailrace.model.errors import ErrorCode, KafkaError
from tailrace.spark.avro.columns import CORRUPT_RECORD, column_type, narrowed
from tailrace.spark.avro.formats import ColumnFormat, ColumnName, RecordFormats, RegistryOptions, Wire
from tailrace.spark.avro.registry import NotRegistered, SchemaRegistry
from tailrace.spark.avro.resolution import SchemasDiffer, default_value
from tailrace.spark.avro.schema import (
    AvroArray,
    AvroMap,
    AvroRecord,
    AvroType,
    AvroUnion,
    SchemaRefused,
    parse_avro_schema,
)
from tailrace.spark.given_options import fault


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodedColumn:
    """A column, and the type of its values in the read."""

    name: ColumnName
    wire: Wire
    writer: AvroType | None
    """The writer's type of all records; None if each record names its type."""
    reader: AvroType


@dataclass(frozen=True, slots=True, kw_only=True)
class Decoding:
    """The decoded columns of a read."""

    columns: tuple[DecodedColumn, ...]
    registry: RegistryOptions | None
    corrupt_column: str | None
    """The column of records that cannot be decoded; without this column the first such record fails the read."""

    def fields(self) -> dict[str, DataType]:
        """The types of the columns that are new, or differ from the columns of a read without formats."""
        types: dict[str, DataType] = {column.name: column_type(column.reader) for column in self.columns}
        return types if self.corrupt_column is None else {**types, self.corrupt_column: CORRUPT_RECORD}

    def row(self, plain: StructType) -> StructType:
        """The schema of a read, given the schema without formats."""
        types = self.fields()
        fields = [
            StructField(field.name, types.pop(field.name, field.dataType), field.nullable) for field in plain.fields
        ]
        return StructType([*fields, *(StructField(name, kind) for name, kind in types.items())])

    def narrowed_to(self, schema: StructType) -> "Decoding":
        """The decoding of the columns and fields that this schema asks for.

        Raises KafkaError(INVALID_REQUEST) for fields that do not exist or have another type. Raises it too if the
        schema has decoded columns and not the column of corrupt records: nulls would hide corrupt records.
        """
        asked = {field.name: field.dataType for field in schema.fields}
        decoded = [column.name for column in self.columns if column.name in asked]
        if self.corrupt_column is not None and decoded and self.corrupt_column not in asked:
            raise fault(
                "mode",
                f"PERMISSIVE needs the column {self.corrupt_column} in .schema(...) beside {' and '.join(decoded)}: "
                f"`{self.corrupt_column}` {CORRUPT_RECORD.simpleString()}; without it nulls would hide corrupt records",
            )
        is_whole = self.corrupt_column in asked if self.corrupt_column is not None else False
        columns = tuple(
            _narrowed(column, asked[column.name]) if column.name in asked else column
            for column in self.columns
            if is_whole or column.name in asked
        )
        return replace(self, columns=columns)


def _narrowed(column: DecodedColumn, asked: DataType) -> DecodedColumn:
    try:
        return replace(column, reader=narrowed(column.reader, asked))
    except SchemaRefused as wrong:
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"column {column.name!r}: {wrong}") from None


def plan_decoding(formats: RecordFormats) -> Decoding | None:
    """The decoding, None without formats. Asks the registry for the latest schemas of subjects.

    Raises KafkaError(INVALID_REQUEST) that names the option, and errors of the registry.
    """
    if not formats.columns:
        return None
    columns = tuple(_planned(column, formats.registry) for column in formats.columns)
    decoding = Decoding(columns=columns, registry=formats.registry, corrupt_column=formats.corrupt_column)
    for column, given in zip(columns, formats.columns, strict=True):
        try:
            column_type(column.reader)
            _check_defaults(column.reader)
        except (SchemaRefused, SchemasDiffer) as wrong:
            raise _refused(given, str(wrong)) from None
    return decoding


def _planned(given: ColumnFormat, registry: RegistryOptions | None) -> DecodedColumn:
    if given.schema is not None:
        try:
            reader = parse_avro_schema(given.schema)
        except SchemaRefused as wrong:
            raise _refused(given, str(wrong)) from None
    else:
        assert registry is not None
        assert given.subject is not None
        reader = _latest(given, SchemaRegistry(registry), given.subject)
    writer = reader if given.wire == "avro" else None
    return DecodedColumn(name=given.column, wire=given.wire, writer=writer, reader=reader)


def _latest(given: ColumnFormat, registry: SchemaRegistry, subject: str) -> AvroType:
    try:
        return registry.latest(subject)
    except NotRegistered as missing:
        way_out = f"say its name as {given.column}Subject, or the schema as {given.column}Schema"
        raise KafkaError(missing.code, f"option {given.column}Format: {missing.detail}; {way_out}") from None


def _refused(given: ColumnFormat, reason: str) -> KafkaError:
    name = f"{given.column}Schema" if given.schema is not None else f"{given.column}Subject"
    return fault(name, reason if given.schema is not None else f"the latest schema of {given.subject}: {reason}")


def _check_defaults(avro_type: AvroType) -> None:
    for path, record in _records(avro_type, ""):
        for field in record.fields:
            if field.has_default:
                default_value(field, f"{path}.{field.name}")


def _records(avro_type: AvroType, path: str) -> Iterator[tuple[str, AvroRecord]]:
    match avro_type:
        case AvroRecord(fields=fields):
            yield path, avro_type
            for field in fields:
                yield from _records(field.type, f"{path}.{field.name}")
        case AvroArray(items=inner) | AvroMap(values=inner):
            yield from _records(inner, f"{path}[]")
        case AvroUnion(members=members):
            for member in members:
                yield from _records(member, path)
