"""The options that a user gives, by name, and the options that no read or write takes.

Spark passes options with lowercased names. All options are checked during planning, on the driver, so that a mistake
fails the query at once with the option's name, and not a task with a Java stack trace.
"""

import difflib
import logging
import re
import time
from collections.abc import Mapping
from typing import Final, Literal

from tailrace.model.errors import ErrorCode, KafkaError

_log = logging.getLogger(__name__)

REFUSED = {
    "kafka.auto.offset.reset": "say startingOffsets and failOnDataLoss instead",
    "kafka.enable.auto.commit": "progress is kept in the query's checkpoint",
    "kafka.key.deserializer": "say keyFormat=avro or confluent-avro, or cast the binary column",
    "kafka.value.deserializer": "say valueFormat=avro or confluent-avro, or cast the binary column",
    "kafka.key.serializer": "keys are string or binary columns",
    "kafka.value.serializer": "values are string or binary columns",
    "kafka.interceptor.classes": "interceptors are Java classes",
    "kafka.partitioner.class": "partitioners are Java classes; fill the column `partition` instead",
    "kafka.transactional.id": "say exactlyOnce=true; the transactions of its tasks have ids of their own",
    "group.id": "say kafka.group.id",
}

KAFKA: Final = "kafka."
SECURITY: Final = ("security.", "sasl.", "ssl.")
"""The beginnings of the names of Kafka's security settings. As options they begin with `kafka.`, and are read by
`cluster_access`, which refuses a name that clients do not have."""
SERVERS: Final = "kafka.bootstrap.servers"
CREDENTIALS: Final = "credentials"
REFERENCES: Final = ("env:", "file:")
"""The beginnings of a reference to a secret (`net.secrets`)."""

Kind = Literal["batch read", "streaming read", "write"]

_EVERYWHERE = (SERVERS, CREDENTIALS, "includeHeaders")
_READS = (
    "kafka.client.rack",
    "client.rack.env",
    "kafka.isolation.level",
    "assign",
    "subscribe",
    "subscribePattern",
    "startingOffsets",
    "startingTimestamp",
    "startingOffsetsByTimestamp",
    "startingOffsetsByTimestampStrategy",
    "endingOffsets",
    "endingTimestamp",
    "endingOffsetsByTimestamp",
    "failOnDataLoss",
    "onCorruptRecords",
    "kafkaConsumer.pollTimeoutMs",
    "keyRangesPerPartition",
    "minPartitions",
    "maxRecordsPerPartition",
    # the options of spark.avro.formats
    "keyFormat",
    "keySchema",
    "keySubject",
    "valueFormat",
    "valueSchema",
    "valueSubject",
    "mode",
    "columnNameOfCorruptRecord",
    "schema.registry.url",
    "schema.registry.ssl.ca.location",
    "schema.registry.ssl.certificate.location",
    "schema.registry.ssl.key.location",
    "schema.registry.ssl.key.password",
    "basic.auth.credentials.source",
    "basic.auth.user.info",
    "bearer.auth.credentials.source",
    "bearer.auth.token",
    "http.read.timeout.ms",
)
_STREAMING_READS = (
    "kafka.group.id",
    "maxBytesPerTrigger",
    "maxOffsetsPerTrigger",
    "minOffsetsPerTrigger",
    "maxTriggerDelay",
)
_WRITES = (
    "kafka.acks",
    "kafka.compression.type",
    "kafka.max.request.size",
    "kafka.transaction.timeout.ms",
    "topic",
    "exactlyOnce",
    "sinkId",
    "sinkTakesOver",
    "sinkKeepsBatch",
)

NAMES: Mapping[Kind, frozenset[str]] = {
    "batch read": frozenset((*_EVERYWHERE, *_READS)),
    "streaming read": frozenset((*_EVERYWHERE, *_READS, *_STREAMING_READS)),
    "write": frozenset((*_EVERYWHERE, *_WRITES)),
}
"""The options that have an effect, or are refused where they would have none; beside these, the options of security."""

_OF_ANOTHER_KIND = {
    name.lower(): f"option {name} is for {whose} and is ignored"
    for names, whose in ((_READS, "reads"), (_STREAMING_READS, "streaming reads"), (_WRITES, "writes"))
    for name in names
}

_SPARKS_OWN = frozenset(("path", "checkpointlocation", "queryname"))

_EMPTY_ELSEWHERE = frozenset((SERVERS, "assign", "subscribe", "subscribePattern"))
"""Required options. The advice to leave an empty option out would not help here, so the code that reads the option
refuses it."""
_MAY_BE_EMPTY = frozenset(("kafka.client.rack", "kafka.ssl.endpoint.identification.algorithm"))
"""Options to which an empty text is a value of Kafka's: no rack, and any name in the certificate of a server."""

LAST_INT32, LAST_INT64 = 2**31 - 1, 2**63 - 1


def fault(option: str, why: str) -> KafkaError:
    return KafkaError(ErrorCode.INVALID_REQUEST, f"option {option}: {why}")


class GivenOptions:
    """The given options; names in any case."""

    def __init__(self, options: Mapping[str, str]) -> None:
        self._options = {name.lower(): value for name, value in options.items()}

    @property
    def _is_table(self) -> bool:
        """Whether a table of the catalog is read: Spark 4.3 gives no options then, or only its own option names."""
        return not self._options or any(name == "provider" or name.startswith("option.") for name in self._options)

    def refuse_unsupported(self) -> None:
        for name, way_out in REFUSED.items():
            if name in self._options:
                raise fault(name, f"not supported: {way_out}")
        for name in self._options:
            if name.startswith(SECURITY):
                raise fault(name, f"say {KAFKA}{name}: without {KAFKA} the option would do nothing")

    def security(self) -> dict[str, str]:
        """The options of security, by Kafka's names."""
        given = {name.removeprefix(KAFKA): value for name, value in self._options.items() if name.startswith(KAFKA)}
        return {name: value for name, value in given.items() if name.startswith(SECURITY)}

    def refuse_empty(self, kind: Kind) -> None:
        """Refuse an empty value, which may come from a template with an unset variable: the default would replace the
        value in silence.

        Batch reads and streaming reads check the options of both kinds.
        """
        names = NAMES["write" if kind == "write" else "streaming read"] | {KAFKA + name for name in self.security()}
        for name in sorted(names - _EMPTY_ELSEWHERE - _MAY_BE_EMPTY):
            value = self.text(name)
            if value is not None and not value.strip():
                raise fault(name, "is empty: leave it out for its default, or give it a value")

    def warn_of_ignored(self, kind: Kind) -> None:
        known = {name.lower(): name for name in NAMES[kind]}
        of_security = {KAFKA + name for name in self.security()}
        for name in sorted(self._options.keys() - known.keys() - _SPARKS_OWN - of_security):
            if name in _OF_ANOTHER_KIND:
                _log.warning("%s", _OF_ANOTHER_KIND[name])
                continue
            near = difflib.get_close_matches(name, known, n=1, cutoff=0.85)
            hint = f"; did you mean {known[near[0]]}?" if near else ""
            _log.warning("option %s has no meaning here and is ignored%s", name, hint)

    def text(self, name: str) -> str | None:
        return self._options.get(name.lower())

    def required(self, name: str, example: str) -> str:
        value = self.text(name)
        if value is None or not value.strip():
            table = (
                "; Spark hands the options of a table to no Python source, those of a query it does: "
                f"SELECT ... FROM t WITH (`{name}` = '...', ...)"
            )
            raise fault(name, f"is required, {example}{table if self._is_table else ''}")
        return value

    def boolean(self, name: str, default: bool) -> bool:
        value = self.text(name)
        if value is None:
            return default
        if value.lower() not in ("true", "false"):
            raise fault(name, f"must be true or false, not {value!r}")
        return value.lower() == "true"

    def positive(self, name: str, *, at_most: int = LAST_INT64) -> int | None:
        value = self.text(name)
        if value is None:
            return None
        if not value.isascii() or not value.isdigit() or not value.strip("0"):
            raise fault(name, f"must be a whole number above 0, not {value!r}")
        number = parse_whole_number(value, at_most=at_most)
        if number is None:
            raise fault(name, f"must be {at_most} at most, not {value!r}")
        return number

    def size(self, name: str) -> int | None:
        """A number of bytes above 0, in the forms that Spark takes elsewhere: 1048576, 64m, 1g."""
        value = self.text(name)
        if value is None:
            return None
        match = _SIZE.fullmatch(value.strip().lower())
        size = 0 if match is None else int(match[1]) * _BYTES[match[2]]
        if not 0 < size <= LAST_INT64:
            raise fault(name, f"must be a number of bytes above 0 such as 1048576, 64m or 1g, not {value!r}")
        return size

    def duration_ms(self, name: str, default: int) -> int:
        value = self.text(name)
        if value is None:
            return default
        duration = parse_whole_number(value)
        if duration is None:
            duration = parse_duration_ms(value)
        if duration is None:
            raise fault(name, f"must be ms or a duration such as 500ms, 30s, 15m or 1h, not {value!r}")
        return duration


_BYTES = {"": 1, "k": 1024, "m": 1024**2, "g": 1024**3}
_SIZE = re.compile(r"([0-9]{1,18})([kmg]?)b?")
_UNITS = {"ms": 1, "s": 1000, "m": 60_000, "min": 60_000, "h": 3_600_000, "d": 86_400_000}
_DURATION = re.compile(r"([0-9]{1,18})\s*(ms|s|m|min|h|d)")


def parse_whole_number(text: str, *, at_most: int = LAST_INT64) -> int | None:
    """The number from 0 to `at_most` that these digits are, or None: Python reads no more than 4,300 digits."""
    if not text.isascii() or not text.isdigit():
        return None
    digits = text.lstrip("0") or "0"
    number = int(digits) if len(digits) <= len(str(at_most)) else None
    return number if number is not None and number <= at_most else None


def parse_duration_ms(text: str) -> int | None:
    """The duration in ms, 900000 for `15m`; None if the text is no duration."""
    match = _DURATION.fullmatch(text.strip().lower())
    return int(match[1]) * _UNITS[match[2]] if match else None


_RELATIVE = re.compile(r"now-(.+)")


def parse_timestamp_ms(text: str) -> int | None:
    """The time in ms since 1970, of a number or of `now-10m`, which Spark's connector does not know; None for any other
    text."""
    text = text.strip()
    if (timestamp := parse_whole_number(text)) is not None:
        return timestamp
    match = _RELATIVE.fullmatch(text)
    ago = parse_duration_ms(match[1]) if match else None
    return None if ago is None else max(int(time.time() * 1000) - ago, 0)
