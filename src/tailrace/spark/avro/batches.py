"""Arrow batches of a read with their keys and values decoded, in a worker.

A column is decoded in slices, so that the Python objects in memory at a time come from about 1 MiB of bodies, or from a
single larger body.
"""

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.pandas.types import to_arrow_type

from tailrace.model.errors import ErrorCode, KafkaError
from tailrace.spark.avro.columns import column_type
from tailrace.spark.avro.decoding import BodyDecoder
from tailrace.spark.avro.formats import ColumnName
from tailrace.spark.avro.plan import DecodedColumn, Decoding
from tailrace.spark.avro.registry import NotRegistered, SchemaRegistry, SchemaUnusable, shared_registry
from tailrace.spark.avro.resolution import Converter, SchemasDiffer, Undecodable, resolve
from tailrace.spark.avro.schema import AvroType

SLICE_BYTES: Final = 1024 * 1024
MOST_UNKNOWN: Final = 1_000
"""The most schema ids that a task requests from the registry in vain, with a request per id."""
_MOST_DECODERS: Final = 1_000
_LONGEST_REASON: Final = 1_000
"""The most characters of a reason, which may have names of a schema and is kept for each row."""
_HEADER: Final = 5
"""The byte 0 and the id of the schema."""

_FAULTS_OF_ARROW = (pa.ArrowException, OverflowError, ValueError, TypeError)


class _BodyReader:
    """The bodies of one writer's schema as values of the column."""

    def __init__(self, writer: AvroType, reader: AvroType) -> None:
        self._convert: Converter | None = resolve(writer, reader)
        self._decoder = BodyDecoder(writer)

    def read(self, body: bytes) -> Any:
        """The value, in the form that Arrow takes. Raises Undecodable."""
        value = self._decoder.decode(body)
        return value if self._convert is None else self._convert(value)


class ColumnDecoder:
    """The decoder of a column in one task."""

    def __init__(self, column: DecodedColumn, registry: SchemaRegistry | None) -> None:
        self._column = column
        self._registry = registry
        self._own = None if column.writer is None else _BodyReader(column.writer, column.reader)
        self._readers: dict[int, _BodyReader | str] = {}
        """The readers by the id of the writer's schema; a text in place of a reader is the reason why there is no
        reader."""
        self._unknown = 0

    def decode(self, body: bytes) -> Any:
        """The value. Raises Undecodable for the body's faults, and KafkaError for the registry's faults."""
        if self._own is not None:
            return self._own.read(body)
        if body[:1] != b"\0" or len(body) < _HEADER:
            begins = f"begins with {body[:1].hex() or 'nothing'}" if body[:1] != b"\0" else f"has {len(body)} bytes"
            form = "confluent-avro with a byte 00 and the 4 bytes of a schema id"
            raise Undecodable(f"it {begins}, and {form}; is it {self._column.name}Format=avro?")
        schema_id = int.from_bytes(body[1:_HEADER], "big")
        reader = self._readers.get(schema_id)
        if reader is None:
            reader = self._reader_of(schema_id)
        if isinstance(reader, str):
            raise Undecodable(reader)
        try:
            return reader.read(body[_HEADER:])
        except Undecodable as wrong:
            raise Undecodable(f"{wrong} (schema {schema_id})") from None

    def _reader_of(self, schema_id: int) -> _BodyReader | str:
        assert self._registry is not None
        reader: _BodyReader | str
        try:
            reader = _BodyReader(self._registry.type_of(schema_id), self._column.reader)
        except NotRegistered as missing:
            self._unknown += 1
            if self._unknown > MOST_UNKNOWN:
                raise KafkaError(
                    missing.code,
                    f"{missing.detail}, nor {MOST_UNKNOWN} others of this task's {self._column.name}s; "
                    "is schema.registry.url the registry of their producers?",
                ) from None
            reader = missing.detail
        except SchemaUnusable as unusable:
            reader = unusable.detail
        except SchemasDiffer as difference:
            reader = f"schema {schema_id} cannot be read as that of the column: {difference}"
        if len(self._readers) >= _MOST_DECODERS:
            self._readers.pop(next(iter(self._readers)))
        self._readers[schema_id] = reader
        return reader


class BatchDecoder:
    """The decoder of a task's batches into the schema that Spark expects."""

    def __init__(self, decoding: Decoding, expected: pa.Schema) -> None:
        self._expected = expected
        self._corrupt_column = decoding.corrupt_column
        registry = None if decoding.registry is None else shared_registry(decoding.registry)
        self._decoders = {column.name: ColumnDecoder(column, registry) for column in decoding.columns}
        self._types = {
            column.name: expected.field(column.name).type
            if column.name in expected.names
            else to_arrow_type(column_type(column.reader), timezone="UTC")
            for column in decoding.columns
        }
        wanted = {*expected.names, *self._decoders, "offset"} - {decoding.corrupt_column}
        if decoding.corrupt_column is not None:
            wanted |= {"key", "value"}
        self.raw_columns = sorted(wanted)
        """The columns that a batch must have."""

    def decode(self, raw: pa.RecordBatch, where: str) -> Iterator[pa.RecordBatch]:
        """The batch in slices of 1 row or more; `where` is the partition, for messages.

        Raises KafkaError(INVALID_RECORD) for a record that cannot be decoded, unless there is a column of faults.
        """
        for start, stop in pairwise(_edges(raw, list(self._decoders))):
            yield self._decode_slice(raw.slice(start, stop - start), where)

    def _decode_slice(self, raw: pa.RecordBatch, where: str) -> pa.RecordBatch:
        reasons: dict[int, str] = {}
        arrays: dict[str, pa.Array] = {name: self._array(name, raw, reasons, where) for name in self._decoders}
        if self._corrupt_column is not None and self._corrupt_column in self._expected.names:
            kind = self._expected.field(self._corrupt_column).type
            arrays[self._corrupt_column] = _corrupt(raw, reasons, kind)
        chosen = [
            arrays[field.name] if field.name in arrays else _as_type(raw.column(field.name), field.type)
            for field in self._expected
        ]
        return pa.RecordBatch.from_arrays(chosen, schema=self._expected)

    def _array(self, name: ColumnName, raw: pa.RecordBatch, reasons: dict[int, str], where: str) -> pa.Array:
        decode, kind = self._decoders[name].decode, self._types[name]
        values: list[Any] = []
        for row, body in enumerate(raw.column(name).to_pylist()):
            try:
                values.append(None if body is None else decode(body))
            except Undecodable as wrong:
                self._note(name, row, str(wrong), raw, reasons, where)
                values.append(None)
        try:
            return pa.array(values, type=kind)
        except _FAULTS_OF_ARROW:
            return self._array_of_valid(name, values, raw, reasons, where)

    def _array_of_valid(
        self, name: ColumnName, values: list[Any], raw: pa.RecordBatch, reasons: dict[int, str], where: str
    ) -> pa.Array:
        """The array, with null for values that the column cannot hold, such as a number beyond an int: a body can have
        any number."""
        kind = self._types[name]
        for row, value in enumerate(values):
            try:
                pa.array([value], type=kind)
            except _FAULTS_OF_ARROW as wrong:
                self._note(name, row, f"a value that its column cannot hold: {str(wrong)[:200]}", raw, reasons, where)
                values[row] = None
        return pa.array(values, type=kind)

    def _note(
        self, name: ColumnName, row: int, reason: str, raw: pa.RecordBatch, reasons: dict[int, str], where: str
    ) -> None:
        """Keep the reason for the column of corrupt records. Raises KafkaError if there is no such column."""
        reason = reason[:_LONGEST_REASON]
        if self._corrupt_column is None:
            offset = raw.column("offset")[row].as_py()
            raise KafkaError(
                ErrorCode.INVALID_RECORD,
                f"{where}, offset {offset}: the {name} cannot be decoded: {reason}; to read on, say mode=PERMISSIVE: "
                "such records are then in a column of their own, with the reason and their bytes",
            )
        reasons[row] = f"{reasons[row]}; {name}: {reason}" if row in reasons else f"{name}: {reason}"


def _edges(raw: pa.RecordBatch, columns: Sequence[str]) -> list[int]:
    """The rows at which slices begin, and the end: the rows of a slice, without its first row, have SLICE_BYTES at
    most."""
    if not raw.num_rows:
        return []
    sizes = np.zeros(raw.num_rows, np.int64)
    for name in columns:
        lengths = pc.binary_length(raw.column(name)).fill_null(0)
        sizes += lengths.to_numpy(zero_copy_only=False)
    slices = np.cumsum(sizes) // SLICE_BYTES
    return [0, *(np.flatnonzero(np.diff(slices)) + 1).tolist(), raw.num_rows]


def _as_type(array: pa.Array, kind: pa.DataType) -> pa.Array:
    return array if array.type.equals(kind) else array.cast(kind)


def _corrupt(raw: pa.RecordBatch, reasons: dict[int, str], kind: pa.DataType) -> pa.Array:
    if not reasons:
        return pa.nulls(raw.num_rows, kind)
    keys, values = raw.column("key"), raw.column("value")
    rows: list[dict[str, Any] | None] = [None] * raw.num_rows
    for row, reason in reasons.items():
        rows[row] = {"reason": reason, "key": keys[row].as_py(), "value": values[row].as_py()}
    return pa.array(rows, type=kind)
