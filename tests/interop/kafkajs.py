"""kafkajs, through the program in js/client.js. npm brings it by its name."""

import base64
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any
from uuid import uuid4

from benchmarks.downloads.fetching import fetched, put_in_place
from interop.librdkafka import DEADLINE_S, Message
from interop.processes import RunningProgram

VERSION = "2.2.4"
HOME = Path(sys.prefix) / f"kafkajs-{VERSION}"
_PROGRAM = Path(__file__).parent / "js" / "client.js"


def absent() -> str | None:
    """The reason why kafkajs cannot be run here, with the command that would bring it; None if it can."""
    if shutil.which("node") is None:
        return "node is not installed: apt-get install nodejs"
    if not HOME.exists() and shutil.which("npm") is None:
        return "npm is not installed: apt-get install npm"
    if not HOME.exists() and not _install():
        return f"npm cannot fetch kafkajs@{VERSION} here"
    return None


@cache
def _install() -> bool:
    with tempfile.TemporaryDirectory(dir=HOME.parent, prefix="kafkajs-") as work:
        command = ["npm", "install", "--no-package-lock", "--no-audit", "--no-fund", f"kafkajs@{VERSION}"]
        # A directory of its own to install into: npm looks for the next package.json upwards.
        Path(work, "package.json").write_text('{"private": true}')
        return fetched(command, directory=Path(work)) and put_in_place(Path(work, "node_modules"), HOME)


def environment() -> dict[str, str]:
    return {**os.environ, "NODE_PATH": str(HOME), "KAFKAJS_NO_PARTITIONER_WARNING": "1"}


def _run(*arguments: str, stdin: str = "") -> Any:
    """The program's last output, from JSON; None if there is none."""
    done = subprocess.run(
        ["node", str(_PROGRAM), *arguments],
        input=stdin,
        capture_output=True,
        encoding="utf-8",
        timeout=DEADLINE_S,
        env=environment(),
        check=False,
    )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    return json.loads(done.stdout) if done.stdout else None


def administer(bootstrap: str, topic: str) -> dict[str, Any]:
    """Have kafkajs create, change, describe and delete a topic of this name and a group; returns its answers."""
    answers: dict[str, Any] = _run("administer", bootstrap, topic)
    return answers


def produce_pairs(bootstrap: str, topic: str, count: int, *, age_ms: int) -> int:
    """Have kafkajs send so many pairs of an old record and one of now, whose batches state the old time.

    Returns the time before (ms since 1970).
    """
    before_ms: int = _run("producePairs", bootstrap, topic, str(count), str(age_ms))
    return before_ms


def _text(value: bytes | None) -> str | None:
    return None if value is None else base64.b64encode(value).decode()


def _bytes(text: str | None) -> bytes | None:
    return None if text is None else base64.b64decode(text)


def _message(record: dict[str, Any]) -> Message:
    headers = tuple((name, _bytes(value)) for name, value in record["headers"])
    return Message(_bytes(record["key"]), _bytes(record["value"]), headers)


class KafkaJsMember:
    """A consumer that tells its assignments and records, until its standard input ends."""

    def __init__(self, bootstrap: str, topic: str, group: str) -> None:
        self._program = RunningProgram(["node", str(_PROGRAM), "join", bootstrap, topic, group], environment())
        self._assigned: set[int] = set()

    def poll(self) -> list[Message]:
        records: list[Message] = []
        for line in self._program.output():
            event = json.loads(line)
            assert "crash" not in event, event
            if "record" in event:
                records.append(_message(event["record"]))
            else:
                self._assigned = set(event["assigned"])
        return records

    def assignment(self) -> set[int]:
        return set(self._assigned)

    def close(self) -> None:
        # kafkajs 2.2.4 may wait without end for a broker that it has lost; its program is killed then.
        with suppress(subprocess.TimeoutExpired):
            self._program.close_input()


class KafkaJsTail:
    """A consumer of one rack that tells new records, until its standard input ends."""

    def __init__(self, bootstrap: str, topic: str, rack: str) -> None:
        group = f"tail-{uuid4()}"
        self._program = RunningProgram(["node", str(_PROGRAM), "tail", bootstrap, topic, group, rack], environment())

    def poll(self) -> list[bytes]:
        events = [json.loads(line) for line in self._program.output()]
        return [event["value"].encode() for event in events if "value" in event]

    def close(self) -> None:
        self._program.close_input()


class KafkaJs:
    """The client kafkajs. It knows gzip alone; headers are an object: headers of one name come together."""

    name = "kafkajs"
    codecs = ("none", "gzip")

    def produce(self, bootstrap: str, topic: str, messages: Sequence[Message], codec: str) -> None:
        records = [
            {"key": _text(m.key), "value": _text(m.value), "headers": [(name, _text(v)) for name, v in m.headers]}
            for m in messages
        ]
        _run("produce", bootstrap, topic, codec, stdin=json.dumps(records))

    def consume(self, bootstrap: str, topic: str, count: int) -> list[Message]:
        return [_message(record) for record in _run("consume", bootstrap, topic, str(count))]

    def join(self, bootstrap: str, topic: str, group: str) -> KafkaJsMember:
        return KafkaJsMember(bootstrap, topic, group)
