"""A schema registry of a test: an HTTP server on 127.0.0.1 with the answers that the test gives."""

import json
import ssl
import struct
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, ClassVar, NamedTuple, Self
from urllib.parse import unquote

Respond = Callable[[BaseHTTPRequestHandler], None]
"""Writes a whole answer, or the bytes of a broken server."""


class Asked(NamedTuple):
    """A request."""

    path: str
    authorization: str | None


class ScriptedRegistry:
    """Answers for its schemas as Confluent's registry does, and for a path with a script by the script. `is_over` is
    set at the end: scripts that wait have to wait for this event.
    """

    def __init__(self) -> None:
        self.asked: list[Asked] = []
        self.scripts: dict[str, list[Respond]] = {}
        """The scripts by path; the last script of a path stays, every other script answers one request."""
        self.is_over = threading.Event()
        self._schemas: dict[int, dict[str, Any]] = {}
        self._versions: dict[str, list[int]] = {}
        registry = self

        class Handler(BaseHTTPRequestHandler):
            timeout: ClassVar[float] = 60

            def do_GET(self) -> None:
                registry._answer(self)

            def log_message(self, format: str, *args: Any) -> None:
                """Log nothing: tests read `asked`."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, fault: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.is_over.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    @property
    def port(self) -> int:
        return int(self._server.server_port)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def use_tls(self, context: ssl.SSLContext) -> None:
        """Speak TLS from the next connection on."""
        self._server.socket = context.wrap_socket(self._server.socket, server_side=True)

    def register(self, subject: str, schema: Any, **more: Any) -> int:
        """Add a version of the subject; returns the id of its schema. `more` has further fields of the answer, such as
        schemaType."""
        schema_id = len(self._schemas) + 1
        self._schemas[schema_id] = {"schema": schema if isinstance(schema, str) else json.dumps(schema), **more}
        self._versions.setdefault(subject, []).append(schema_id)
        return schema_id

    def _answer(self, request: BaseHTTPRequestHandler) -> None:
        self.asked.append(Asked(request.path, request.headers["Authorization"]))
        scripts = self.scripts.get(request.path)
        if scripts:
            respond = scripts.pop(0) if len(scripts) > 1 else scripts[0]
            respond(request)
            return
        status, body = self._found([unquote(part) for part in request.path.strip("/").split("/")])
        respond_with(status, json.dumps(body).encode())(request)

    def _found(self, parts: list[str]) -> tuple[int, dict[str, Any]]:
        match parts:
            case ["schemas", "ids", number]:
                found = self._schemas.get(int(number))
                missing = (404, {"error_code": 40403, "message": f"Schema {number} not found"})
                return missing if found is None else (200, found)
            case ["subjects", subject, "versions", version]:
                ids = self._versions.get(subject)
                if ids is None:
                    return 404, {"error_code": 40401, "message": f"Subject '{subject}' not found."}
                schema_id = ids[-1] if version == "latest" else ids[int(version) - 1]
                return 200, {"subject": subject, "id": schema_id, "version": len(ids), **self._schemas[schema_id]}
        return 404, {"error_code": 404, "message": "HTTP 404 Not Found"}


def respond_with(status: int, body: bytes = b"{}", **headers: str) -> Respond:
    """A script that writes this answer."""

    def respond(request: BaseHTTPRequestHandler) -> None:
        request.send_response(status)
        for name, value in headers.items():
            request.send_header(name, value)
        request.send_header("Content-Length", str(len(body)))
        request.end_headers()
        request.wfile.write(body)

    return respond


def framed(schema_id: int, body: bytes) -> bytes:
    """A record in Confluent's form: the byte 0, the id of the schema, the body."""
    return struct.pack(">bI", 0, schema_id) + body
