"""The options that say how keys and values are encoded. Light: Spark imports it to look up the name of the source."""

import importlib.util
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final, Literal
from urllib.parse import SplitResult, unquote, urlsplit

from tailrace.spark.given_options import LAST_INT32, REFERENCES, GivenOptions, fault

_log = logging.getLogger(__name__)

ColumnName = Literal["key", "value"]
Wire = Literal["avro", "confluent-avro"]
"""`avro` is the body alone; `confluent-avro` puts a byte 0 and the 4-byte id of the writer's schema before the body."""

COLUMNS: Final[tuple[ColumnName, ...]] = ("key", "value")
_WIRES: Final[Mapping[str, Wire | None]] = {"binary": None, "avro": "avro", "confluent-avro": "confluent-avro"}

URL: Final = "schema.registry.url"
_USER_INFO: Final = "basic.auth.user.info"
_TOKEN: Final = "bearer.auth.token"
_SOURCES: Final = {
    "basic.auth.credentials.source": ("USER_INFO", "URL"),
    "bearer.auth.credentials.source": ("STATIC_TOKEN",),
}
_TIMEOUT: Final = "http.read.timeout.ms"
_CA: Final = "schema.registry.ssl.ca.location"
_CERTIFICATE: Final = "schema.registry.ssl.certificate.location"
_KEY: Final = "schema.registry.ssl.key.location"
_KEY_PASSWORD: Final = "schema.registry.ssl.key.password"
_OF_REGISTRY: Final = (URL, _USER_INFO, _TOKEN, *_SOURCES, _TIMEOUT, _CA, _CERTIFICATE, _KEY, _KEY_PASSWORD)
_OF_COLUMNS: Final = tuple(f"{column}{what}" for column in COLUMNS for what in ("Format", "Schema", "Subject"))
MODE: Final = "mode"
CORRUPT_COLUMN: Final = "columnNameOfCorruptRecord"

_DEFAULT_CORRUPT_COLUMN: Final = "_corrupt_record"
_DEFAULT_TIMEOUT_MS: Final = 10_000
_OWN_COLUMNS: Final = ("key", "value", "topic", "partition", "offset", "timestamp", "timestampType", "headers")


@dataclass(frozen=True, slots=True)
class Server:
    """An address of a schema registry. `shown` has no credentials and is for messages."""

    scheme: Literal["http", "https"]
    host: str
    port: int | None
    path: str
    """The path before the path of the API, without a slash at its end."""

    @property
    def shown(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.scheme}://{host}{'' if self.port is None else f':{self.port}'}{self.path}"


@dataclass(frozen=True, slots=True, kw_only=True)
class RegistryOptions:
    """A schema registry: its servers, tried in turn, and credentials, which no text of the object shows.

    A credential may be a reference, `env:NAME` or `file:PATH`.
    """

    servers: tuple[Server, ...]
    user_info: str | None = field(default=None, repr=False)
    """USER:PASSWORD."""
    token: str | None = field(default=None, repr=False)
    timeout_ms: int = _DEFAULT_TIMEOUT_MS
    """The limit of a request, from its first byte to the last of the answer."""
    ca_file: str | None = None
    certificate_file: str | None = None
    key_file: str | None = None
    key_password: str | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class ColumnFormat:
    """The encoding of a column. Only `confluent-avro` of an unknown topic has neither a schema nor a subject."""

    column: ColumnName
    wire: Wire
    schema: str | None = None
    """JSON text: the reader's schema, and of `avro` the writer's too."""
    subject: str | None = None
    """The subject whose latest version is the reader's schema if no `schema` is given."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordFormats:
    """The columns to decode; by default no column is decoded."""

    columns: tuple[ColumnFormat, ...] = ()
    registry: RegistryOptions | None = None
    corrupt_column: str | None = None
    """The column of records that cannot be decoded; without this column the first such record fails the read."""


def parse_formats(given: GivenOptions, *, only_topic: Callable[[], str | None]) -> RecordFormats:
    """The formats in the options; `only_topic` returns the topic that is read, None if there may be several topics.

    Raises KafkaError(INVALID_REQUEST) that names the option and the way out.
    """
    wires = {column: _wire(given, column) for column in COLUMNS}
    _check_needed(given, wires)
    registry = _registry(given)
    columns = tuple(_column(given, column, wire, only_topic) for column, wire in wires.items() if wire is not None)
    if columns:
        check_fastavro("on the driver", option=f"{columns[-1].column}Format")
    return RecordFormats(columns=columns, registry=registry, corrupt_column=_corrupt_column(given))


def check_fastavro(where: str, *, option: str = "valueFormat") -> None:
    """Raise KafkaError(INVALID_REQUEST) if fastavro is not installed."""
    if importlib.util.find_spec("fastavro") is None:
        raise fault(option, f"fastavro is not installed {where}: pip install 'tailrace[avro]' there")


def _wire(given: GivenOptions, column: ColumnName) -> Wire | None:
    name = given.text(f"{column}Format")
    if name is None:
        return None
    if name.lower() not in _WIRES:
        raise fault(f"{column}Format", f"must be one of {', '.join(_WIRES)}, not {name!r}")
    return _WIRES[name.lower()]


def _check_needed(given: GivenOptions, wires: Mapping[ColumnName, Wire | None]) -> None:
    """Refuse options that would do nothing, and formats without a schema or registry to decode with."""
    for column, wire in wires.items():
        schema, subject = f"{column}Schema", f"{column}Subject"
        if wire is None:
            for name in (schema, subject):
                if given.text(name) is not None:
                    raise fault(
                        name, f"needs {column}Format=avro or confluent-avro: without it the {column} stays binary"
                    )
        elif wire == "avro" and given.text(schema) is None:
            raise fault(
                schema,
                f"is required by {column}Format=avro; records with ids of a registry's schemas are confluent-avro",
            )
        elif given.text(subject) is not None and (wire == "avro" or given.text(schema) is not None):
            raise fault(subject, f"conflicts with {schema}: both say with which schema the {column} is read")
        if wire == "confluent-avro" and given.text(URL) is None:
            raise fault(URL, f"is required by {column}Format=confluent-avro: the schemas of the records' ids are there")
    if "confluent-avro" not in wires.values():
        for name in _OF_REGISTRY:
            if given.text(name) is not None:
                raise fault(name, "conflicts with the formats: it is for valueFormat or keyFormat=confluent-avro")
    if not any(wires.values()):
        for name in (MODE, CORRUPT_COLUMN):
            if given.text(name) is not None:
                raise fault(name, "needs valueFormat or keyFormat: there is nothing to decode")


def _column(given: GivenOptions, column: ColumnName, wire: Wire, only_topic: Callable[[], str | None]) -> ColumnFormat:
    schema, subject = given.text(f"{column}Schema"), given.text(f"{column}Subject")
    if wire == "confluent-avro" and schema is None and subject is None:
        topic = only_topic()
        if topic is None:
            way_out = f"say {column}Schema, or {column}Subject for the name of its schema in the registry"
            raise fault(f"{column}Format", f"more than one topic may be read, each with a schema of its own: {way_out}")
        subject = f"{topic}-{column}"
    return ColumnFormat(column=column, wire=wire, schema=schema, subject=subject)


def _corrupt_column(given: GivenOptions) -> str | None:
    mode, name = given.text(MODE) or "FAILFAST", given.text(CORRUPT_COLUMN)
    if mode.upper() == "FAILFAST":
        if name is not None:
            raise fault(CORRUPT_COLUMN, "needs mode=PERMISSIVE: with FAILFAST a corrupt record fails the read")
        return None
    if mode.upper() != "PERMISSIVE":
        hint = " (DROPMALFORMED would lose records in silence)" if mode.upper() == "DROPMALFORMED" else ""
        raise fault(MODE, f"must be FAILFAST or PERMISSIVE, not {mode!r}{hint}")
    name = _DEFAULT_CORRUPT_COLUMN if name is None else name
    if name.lower() in (column.lower() for column in _OWN_COLUMNS):
        raise fault(CORRUPT_COLUMN, f"must be a name that no other column has, not {name!r}")
    return name


def _registry(given: GivenOptions) -> RegistryOptions | None:
    text = given.text(URL)
    if text is None:
        return None
    urls = [_split(url.strip()) for url in text.split(",") if url.strip()]
    if not urls:
        raise fault(URL, "names no registry")
    in_url = {f"{unquote(url.username)}:{unquote(url.password or '')}" for url in urls if url.username is not None}
    user_info, token = given.text(_USER_INFO), given.text(_TOKEN)
    _check_credentials(given, in_url, user_info, token)
    certificate, key = given.text(_CERTIFICATE), given.text(_KEY)
    if key is not None and certificate is None:
        raise fault(_KEY, f"needs {_CERTIFICATE}")
    return RegistryOptions(
        servers=tuple(_server(url) for url in urls),
        user_info=user_info if user_info is not None else next(iter(in_url), None),
        token=token,
        timeout_ms=given.positive(_TIMEOUT, at_most=LAST_INT32) or _DEFAULT_TIMEOUT_MS,
        ca_file=given.text(_CA),
        certificate_file=certificate,
        key_file=key,
        key_password=given.text(_KEY_PASSWORD),
    )


def check_user_info(user_info: str) -> None:
    """Raise KafkaError(INVALID_REQUEST) for another form than USER:PASSWORD."""
    if ":" not in user_info:
        raise fault(_USER_INFO, "must be USER:PASSWORD")


def check_token(token: str) -> None:
    """Raise KafkaError(INVALID_REQUEST) for a token that no header can have."""
    if not (token.isascii() and token.isprintable()):
        raise fault(_TOKEN, "has a character that no header can have, such as the end of a line")


def _split(url: str) -> SplitResult:
    """Split a URL. The fault raised does not show the URL, which may have a password."""
    try:
        parts = urlsplit(url)
        is_url = parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port is None or parts.port > 0)
    except ValueError:
        is_url = False
    if not is_url or parts.query or parts.fragment:
        raise fault(URL, "must be http://HOST:PORT or https://HOST:PORT, several with commas between them")
    return parts


def _server(url: SplitResult) -> Server:
    scheme: Literal["http", "https"] = "https" if url.scheme == "https" else "http"
    return Server(scheme, url.hostname or "", url.port, url.path.rstrip("/"))


def _check_credentials(given: GivenOptions, in_url: set[str], user_info: str | None, token: str | None) -> None:
    for name, values in _SOURCES.items():
        source = given.text(name)
        if source is not None and source.upper() not in values:
            raise fault(name, f"must be {' or '.join(values)}, not {source!r}")
    for name, secret in ((_USER_INFO, user_info), (_TOKEN, token), (_KEY_PASSWORD, given.text(_KEY_PASSWORD))):
        if secret is not None and not secret.startswith(REFERENCES):
            _log.warning(
                "option %s: Spark keeps options in plans, texts of SQL and event logs; give env:NAME or file:PATH", name
            )
    if user_info is not None and not user_info.startswith(REFERENCES):
        check_user_info(user_info)
    if token is not None and not token.startswith(REFERENCES):
        check_token(token)
    if token is not None and (user_info is not None or in_url):
        raise fault(_TOKEN, f"conflicts with {_USER_INFO if user_info is not None else f'the user in {URL}'}")
    if len(in_url | ({user_info} if user_info is not None else set())) > 1:
        raise fault(URL, f"has another user than {_USER_INFO} or another of its URLs")
