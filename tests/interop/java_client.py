"""Apache Kafka's own Java client, through its console tools and its verifiable consumer."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from interop.kafka_tools import JARS, command, java, run
from interop.librdkafka import Message
from interop.processes import RunningProgram

PATIENTLY = ("--request-timeout-ms", "60000")
"""For kafka-console-producer, which gives up records after a few requests of 1.5 s and ends well nevertheless."""
_NULL = "<null>"
_TAB = "\t"


class JavaMember:
    """kafka-verifiable-consumer: it tells what it is given, what is taken away, and each record."""

    def __init__(self, bootstrap: str, topic: str, group: str, protocol: str) -> None:
        options = ["--bootstrap-server", bootstrap, "--topic", topic, "--group-id", group, "--verbose"]
        options += ["--group-protocol", protocol, "--reset-policy", "earliest"]
        if protocol == "classic":
            options += ["--session-timeout", "10000"]  # with KIP-848 it is the broker's
        self._program = RunningProgram(command("kafka-verifiable-consumer", *options))
        self._assigned: set[int] = set()

    def poll(self) -> list[Message]:
        records: list[Message] = []
        for line in self._program.output():
            event = json.loads(line)
            match event["name"]:
                case "record_data":
                    key, value = event["key"], event["value"]
                    records.append(Message(key and key.encode(), value and value.encode()))
                case "partitions_assigned":
                    self._assigned |= {partition["partition"] for partition in event["partitions"]}
                case "partitions_revoked":
                    self._assigned -= {partition["partition"] for partition in event["partitions"]}
                case "offsets_committed":
                    assert event["success"], event
        return records

    def assignment(self) -> set[int]:
        return set(self._assigned)

    def close(self) -> None:
        self._program.terminate()


class Java:
    """Apache Kafka's client for Java."""

    name = "java"
    protocol = "classic"

    def produce(self, bootstrap: str, topic: str, messages: Sequence[Message], codec: str) -> None:
        options = ["parse.key=true", "parse.headers=true", f"null.marker={_NULL}"]
        properties = [word for option in options for word in ("--property", option)]
        lines = "".join(f"{_headers(m)}\t{_text(m.key)}\t{_text(m.value)}\n" for m in messages)
        where = ("--bootstrap-server", bootstrap, "--topic", topic, "--compression-codec", codec)
        run("kafka-console-producer", *where, *PATIENTLY, *properties, stdin=lines)

    def consume(self, bootstrap: str, topic: str, count: int) -> list[Message]:
        options = ["print.key=true", "print.headers=true", f"null.literal={_NULL}"]
        properties = [word for option in options for word in ("--property", option)]
        where = ("--bootstrap-server", bootstrap, "--topic", topic, "--partition", "0", "--offset", "earliest")
        printed = run("kafka-console-consumer", *where, "--max-messages", str(count), *properties)
        return [_message(line) for line in printed.out.splitlines()]

    def join(self, bootstrap: str, topic: str, group: str) -> JavaMember:
        return JavaMember(bootstrap, topic, group, self.protocol)


class JavaConsumerProtocol(Java):
    """The same with group.protocol=consumer (KIP-848)."""

    name = "java-kip-848"
    protocol = "consumer"


class JavaPatternMember:
    """KafkaConsumer.subscribe(SubscriptionPattern): the pattern is the broker's to resolve."""

    def __init__(self, bootstrap: str, pattern: str, group: str) -> None:
        source = str(Path(__file__).with_name("PatternConsumer.java"))
        self._program = RunningProgram([*java("-cp", f"{JARS}/*"), source, bootstrap, pattern, group])

    def poll(self) -> list[Message]:
        return [Message(None, line.encode()) for line in self._program.output()]

    def assignment(self) -> set[int]:
        raise NotImplementedError("it tells its records only")

    def close(self) -> None:
        self._program.terminate()


class JavaPatternConsumer(JavaConsumerProtocol):
    """The same, subscribing by a regular expression. The program is compiled at its start and needs a whole JDK."""

    name = "java-pattern"

    def join(self, bootstrap: str, topic: str, group: str) -> Any:
        return JavaPatternMember(bootstrap, topic, group)


def _text(value: bytes | None) -> str:
    return _NULL if value is None else value.decode()


def _headers(message: Message) -> str:
    return ",".join(f"{name}:{_text(value)}" for name, value in message.headers) or _NULL


def _bytes(text: str) -> bytes | None:
    return None if text == _NULL else text.encode()


def _message(line: str) -> Message:
    headers, key, value = line.split(_TAB)
    pairs = [] if headers == "NO_HEADERS" else [pair.split(":") for pair in headers.split(",")]
    return Message(_bytes(key), _bytes(value), tuple((name, _bytes(text)) for name, text in pairs))
