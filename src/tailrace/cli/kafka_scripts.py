"""Words of Kafka's shell scripts, and words that users guess: what a command line of theirs is here.

Users of `kafka-topics.sh --create --topic orders` type `tailrace topics --create --topic orders`. Words that only name
an argument (`--topic orders`), or a default, are accepted; other words are answered with the line to type.
"""

import shlex
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

_SERVERS: Final = "--bootstrap-server"
_ARGUMENT: Final = "{}"
_DEFAULT: Final = ""


class KafkaScript(NamedTuple):
    """The words of a script of Kafka that the commands of a noun do not have."""

    commands: Sequence[str] = ()
    """Commands of the noun, which the script has as options; empty for a noun without commands."""
    options: Mapping[str, str] = {}
    """Options of the script, and the words here, with `{}` for the value. A key may have the value too, or the value's
    name before `=`: `--offset earliest`, `--property key.separator`; `{}` is then what follows."""
    missing: Mapping[str, str] = {}
    """Options of the script without a counterpart, and the way out."""
    guesses: Mapping[str, str] = {}
    """Words that users guess for a command of the noun, and the command."""


_ADDRESS: Final[Mapping[str, str]] = {"-b": "--bootstrap-server {}"}
"""The option of other tools for the address of a cluster."""
_PORT: Final[Mapping[str, str]] = {"--port": "--listen 127.0.0.1:{}"}
_NO_CLIENT_FILE: Final = "commands have options of their own; `--command-config` reads a file of settings of clients"
_SEE_ISR: Final = "`tailrace topics describe` shows the partitions, to compare Isr with Replicas"
_SEE_FORMAT: Final = "`--format` prints value, key-value, or json, which has all fields of a record"
_SEE_SEPARATOR: Final = "`--key-separator :` says that lines have keys, with this text behind; Kafka's default is '\\t'"
SCRIPTS: Final[Mapping[str, KafkaScript]] = {
    "topics": KafkaScript(
        ("list", "create", "alter", "describe", "delete"),
        {"--topic": _ARGUMENT, "--exclude-internal": _DEFAULT, **_ADDRESS},
        {
            "--if-exists": "a missing topic is a failure, with exit code 1",
            "--replica-assignment": "`tailrace topics reassign NAME --partition N --replicas ID,ID` moves a new topic",
            "--topic-id": "`tailrace topics list -o json` has the names and the ids",
            "--under-replicated-partitions": _SEE_ISR,
            "--under-min-isr-partitions": _SEE_ISR,
            "--at-min-isr-partitions": _SEE_ISR,
            "--unavailable-partitions": "`tailrace topics describe` shows the partitions, with `none` as leader",
            "--topics-with-overrides": "`tailrace topics describe` shows the settings of topics as Configs",
        },
    ),
    "groups": KafkaScript(
        ("list", "describe", "reset-offsets", "delete"),
        {
            "--group": _ARGUMENT,
            "--all-groups": _DEFAULT,
            "--all-topics": _DEFAULT,
            "--dry-run": _DEFAULT,
            "--offsets": _DEFAULT,
            "--verbose": _DEFAULT,
            "--to-current": "--shift-by 0",
            "--to-beginning": "--to-earliest",
            "--to-begining": "--to-earliest",
            "--to-end": "--to-latest",
            **_ADDRESS,
        },
        {
            "--by-duration": "`--to-datetime TIME` names the time itself",
            "--delete-offsets": "`Admin.delete_offsets` in Python deletes the offsets of a topic",
            "--from-file": "`--topic NAME:PARTITION --to-offset N` sets the offset of a partition",
        },
        {"reset": "reset-offsets", "lag": "describe"},
    ),
    "consume": KafkaScript(
        (),
        {
            "--topic": _ARGUMENT,
            "--offset earliest": "--from-beginning",
            "--offset latest": _DEFAULT,
            "--timeout-ms": "--timeout {seconds}",
            "--isolation-level": "--isolation {}",
            "--skip-message-on-error": "--on-corrupt skip",
            "--property print.key=true": "--format key-value",
            "--property key.separator": "--key-separator {}",
            "--formatter-property print.key=true": "--format key-value",
            "--formatter-property key.separator": "--key-separator {}",
            "--consumer-property group.id": "--group {}",
            "--consumer-property isolation.level": "--isolation {}",
            "--consumer-property client.rack": "--rack {}",
            "--command-property group.id": "--group {}",
            "--command-property isolation.level": "--isolation {}",
            "--command-property client.rack": "--rack {}",
            **_ADDRESS,
        },
        {
            "--include": "a command reads one topic",
            "--property": _SEE_FORMAT,
            "--formatter-property": _SEE_FORMAT,
            "--formatter": _SEE_FORMAT,
            "--key-deserializer": _SEE_FORMAT,
            "--value-deserializer": _SEE_FORMAT,
            "--consumer-property": _NO_CLIENT_FILE,
            "--command-property": _NO_CLIENT_FILE,
            "--consumer.config": _NO_CLIENT_FILE,
            "--consumer-config": _NO_CLIENT_FILE,
        },
    ),
    "produce": KafkaScript(
        (),
        {
            "--topic": _ARGUMENT,
            "--broker-list": "--bootstrap-server {}",
            "--compression-codec": "--compression {}",
            "--request-required-acks -1": "--acks all",
            "--request-required-acks": "--acks {}",
            "--property key.separator": "--key-separator {}",
            "--reader-property key.separator": "--key-separator {}",
            "--producer-property acks": "--acks {}",
            "--producer-property compression.type": "--compression {}",
            "--command-property acks": "--acks {}",
            "--command-property compression.type": "--compression {}",
            "--sync": _DEFAULT,
            **_ADDRESS,
        },
        {
            "--property": _SEE_SEPARATOR,
            "--reader-property": _SEE_SEPARATOR,
            "--producer-property": _NO_CLIENT_FILE,
            "--command-property": _NO_CLIENT_FILE,
            "--producer.config": _NO_CLIENT_FILE,
            "--producer-config": _NO_CLIENT_FILE,
        },
    ),
    "brokers": KafkaScript(("list", "describe", "unregister"), _ADDRESS),
    "quorum": KafkaScript(("describe", "add-controller", "remove-controller"), _ADDRESS),
    "sessions": KafkaScript((), _ADDRESS),
    "transactions": KafkaScript(
        ("list", "describe", "abort"), {"--transactional-id": _ARGUMENT, "--topic": _ARGUMENT, **_ADDRESS}
    ),
    "serve": KafkaScript((), _PORT),
    "up": KafkaScript((), _PORT),
    "dump-log": KafkaScript((), {"--files": _ARGUMENT}),
}
"""By noun."""
SCRIPT_NOUNS: Final = {
    "topics": "topics",
    "console-consumer": "consume",
    "console-producer": "produce",
    "consumer-groups": "groups",
    "groups": "groups",
    "metadata-quorum": "quorum",
    "transactions": "transactions",
    "dump-log": "dump-log",
    "start": "serve",
}
"""The nouns of scripts, whose names are without `kafka-` and `.sh`, and of words that users guess."""
OTHER_SCRIPTS: Final = {
    "broker-api-versions": "`tailrace doctor connect HOST:PORT` looks at a node",
    "cluster": "`tailrace quorum describe` shows the cluster, `tailrace brokers list` its brokers",
    "configs": "`tailrace topics alter NAME --config NAME=VALUE` changes a topic, `tailrace brokers alter` brokers;"
    " `tailrace topics describe`, `tailrace brokers describe` show settings, and `tailrace users` makes users",
    "delete-records": "`Admin.delete_records` in Python deletes records",
    "get-offsets": "`tailrace groups describe GROUP` shows LOG-END-OFFSET, `Admin.list_offsets` in Python any offset",
    "leader-election": "`tailrace topics elect [NAME]` elects the preferred leaders",
    "log-dirs": "`tailrace brokers describe` shows the log directories",
    "metadata-shell": "`tailrace snapshots describe` shows the metadata, `tailrace dump-log` prints its log",
    "reassign-partitions": "`tailrace topics reassign NAME --partition N --replicas ID,ID` moves replicas",
    "server-start": "`tailrace serve --config FILE` starts a node",
    "storage": "`tailrace serve` formats the directory of a new node itself",
}


class TypedLine(NamedTuple):
    """A command line in Tailrace's words."""

    words: list[str]
    answer: str | None = None
    """The line for a user whose words are not run; None: the words are run."""
    is_accepted: bool = True
    """Whether Kafka's words among the words only name an argument or a default."""


def read_line(words: Sequence[str]) -> TypedLine:
    """The words after `tailrace`, unchanged if none of the words is Kafka's or a guess."""
    servers, rest = _split_servers(words)
    if not rest:
        return TypedLine([*words])
    typed, *rest = rest
    name = typed.removeprefix("kafka-").removesuffix(".sh")
    if name in OTHER_SCRIPTS:
        return TypedLine([], f"{typed} is a script of Kafka: {OTHER_SCRIPTS[name]}")
    noun = SCRIPT_NOUNS.get(name, typed)
    script = SCRIPTS.get(noun)
    if script is None:
        return TypedLine([noun, *servers, *rest])
    command: list[str] = []
    is_accepted = noun == typed
    if script.commands:
        more, rest = _split_servers(rest)
        servers += more
        option = next((word for word in rest if word.startswith("--") and word[2:] in script.commands), None)
        if option is not None:
            rest.remove(option)
            command, is_accepted = [option[2:]], False
        elif rest and not rest[0].startswith("-"):
            command = [rest.pop(0)]
            if command[0] in script.guesses:
                command, is_accepted = [script.guesses[command[0]]], False
    if command and command[0] not in script.commands:
        script, is_accepted = KafkaScript(options=_ADDRESS), True  # Kafka's script does not have the command
    read = _read_options(script, rest)
    if read.answer is not None:
        return read
    if script.commands and not command:
        return TypedLine([noun, *servers, *rest])
    line = [noun, *command, *servers, *read.words]
    if is_accepted and read.is_accepted:
        return TypedLine(line)
    return TypedLine([], f"in Tailrace's words: tailrace {shlex.join(line)}")


def _read_options(script: KafkaScript, words: Sequence[str]) -> TypedLine:
    read: list[str] = []
    is_accepted = True
    left = [*words]
    while left:
        word = left.pop(0)
        option, equals, value = word.partition("=")
        if not equals and left:
            value = left[0]
        if word == "--":
            return TypedLine([*read, word, *left], is_accepted=is_accepted)
        found = _find_option(script, option, value)
        if found is None:
            if option in script.missing:
                return TypedLine([], f"{option} is an option of Kafka's script: {script.missing[option]}")
            read.append(word)
            continue
        key, filling = found
        template = script.options[key]
        seconds = f"{int(filling) / 1000:g}" if filling.isdecimal() else filling
        read += [part.format(filling, seconds=seconds) for part in template.split()]
        is_accepted &= template in (_ARGUMENT, _DEFAULT)
        if not equals and (key != option or "{" in template):
            left.pop(0)
    return TypedLine(read, is_accepted=is_accepted)


def _find_option(script: KafkaScript, option: str, value: str) -> tuple[str, str] | None:
    """The key of the option in the table, and the text for `{}`; None for an option that the table does not have."""
    name, _, content = value.partition("=")
    for key, filling in ((f"{option} {value}", value), (f"{option} {name}", content), (option, value)):
        if key in script.options and (filling or "{" not in script.options[key]):
            return key, filling
    return None


def _split_servers(words: Sequence[str]) -> tuple[list[str], list[str]]:
    """The addresses before all other words, which Kafka's scripts may have there, and the rest."""
    length = 0
    if words and words[0].partition("=")[0] == _SERVERS:
        length = 1 if "=" in words[0] else 2
    return [*words[:length]], [*words[length:]]
