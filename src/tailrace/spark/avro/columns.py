"""Avro types as Spark types, as in Spark's own Avro source; older versions of that source have numbers for times."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    NullType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
    TimeType,
)

from tailrace.spark.avro.resolution import at
from tailrace.spark.avro.schema import (
    NULL,
    AvroArray,
    AvroEnum,
    AvroField,
    AvroFixed,
    AvroMap,
    AvroPrimitive,
    AvroRecord,
    AvroType,
    AvroUnion,
    Logical,
    SchemaRefused,
    takes_null,
)

_PRIMITIVES: Final[Mapping[str, type[DataType]]] = {
    "null": NullType,
    "boolean": BooleanType,
    "int": IntegerType,
    "long": LongType,
    "float": FloatType,
    "double": DoubleType,
    "string": StringType,
    "bytes": BinaryType,
}
_LOGICAL: Final[Mapping[str, type[DataType]]] = {
    "date": DateType,
    "time-millis": TimeType,
    "time-micros": TimeType,
    "timestamp-millis": TimestampType,
    "timestamp-micros": TimestampType,
    "local-timestamp-millis": TimestampNTZType,
    "local-timestamp-micros": TimestampNTZType,
    "uuid": StringType,
}
_MOST_DIGITS: Final = 38
CORRUPT_RECORD: Final = StructType(
    [StructField("reason", StringType()), StructField("key", BinaryType()), StructField("value", BinaryType())]
)
"""The reason, and the bytes of key and value as stored in the log."""


def column_type(avro_type: AvroType, path: str = "") -> DataType:
    """The type of the column. Raises SchemaRefused for a type that no column can hold."""
    match avro_type:
        case AvroPrimitive(kind=kind, logical=logical):
            return _PRIMITIVES[kind]() if logical is None else _logical_type(logical, path)
        case AvroFixed(logical=logical):
            return BinaryType() if logical is None else _logical_type(logical, path)
        case AvroEnum():
            return StringType()
        case AvroArray(items=items):
            return ArrayType(column_type(items, f"{path}[]"), takes_null(items))
        case AvroMap(values=values):
            return MapType(StringType(), column_type(values, f"{path}[]"), takes_null(values))
        case AvroRecord(fields=fields):
            if not fields:
                raise SchemaRefused(f"{at(path)}record {avro_type.name} has no fields: Spark has no type for it")
            each = ((field.name, field.type) for field in fields)
            return StructType(
                [StructField(name, column_type(type_, f"{path}.{name}"), takes_null(type_)) for name, type_ in each]
            )
        case AvroUnion(single=None, members=members):
            return StructType(
                [StructField(f"member{number}", column_type(each, path)) for number, each in enumerate(members)]
            )
        case AvroUnion(single=single):
            return column_type(single or NULL, path)


def _logical_type(logical: Logical, path: str) -> DataType:
    if logical.name != "decimal":
        return _LOGICAL[logical.name]()
    if logical.precision > _MOST_DIGITS:
        digits = f"a decimal of {logical.precision} digits, and Spark's have {_MOST_DIGITS} at most"
        raise SchemaRefused(f"{at(path)}{digits}; without its logicalType it is read as bytes")
    return DecimalType(logical.precision, logical.scale)


def narrowed(avro_type: AvroType, asked: DataType, path: str = "") -> AvroType:
    """The type with only the wanted fields, at any depth of records, arrays and maps.

    Raises SchemaRefused for a field that the type does not have, a field of another type, or NOT NULL where null may
    be.
    """
    match avro_type, asked:
        case AvroRecord(), StructType():
            return replace(avro_type, fields=tuple(_narrowed_field(avro_type, field, path) for field in asked.fields))
        case AvroArray(), ArrayType():
            _check_null(avro_type.items, asked.containsNull, f"{path}[]")
            return AvroArray(narrowed(avro_type.items, asked.elementType, f"{path}[]"))
        case AvroMap(), MapType() if isinstance(asked.keyType, StringType):
            _check_null(avro_type.values, asked.valueContainsNull, f"{path}[]")
            return AvroMap(narrowed(avro_type.values, asked.valueType, f"{path}[]"))
        case AvroUnion(members=(member,)), _:
            inner = narrowed(member, asked, path)
            return AvroUnion(tuple(inner if branch == member else branch for branch in avro_type.branches))
    has = column_type(avro_type, path)
    if has.simpleString() != asked.simpleString():
        raise SchemaRefused(f"{at(path)}is {has.simpleString()}, not {asked.simpleString()}")
    return avro_type


def _narrowed_field(record: AvroRecord, asked: StructField, path: str) -> AvroField:
    where = f"{path}.{asked.name}"
    field = next((each for each in record.fields if each.name == asked.name), None)
    if field is None:
        there = ", ".join(each.name for each in record.fields)
        raise SchemaRefused(f"{at(where)}there is no such field; record {record.name} has {there}"[:1_000])
    _check_null(field.type, asked.nullable, where)
    return replace(field, type=narrowed(field.type, asked.dataType, where))


def _check_null(avro_type: AvroType, may_be_null: bool, path: str) -> None:
    if takes_null(avro_type) and not may_be_null:
        raise SchemaRefused(f"{at(path)}is asked for as NOT NULL, and its type has null")
