"""Words of Kafka's shell scripts, and guesses, on the command line: run, or answered with the line to type."""

import shlex
from typing import Any

import pytest
import typer

from tailrace.cli.kafka_scripts import OTHER_SCRIPTS, SCRIPT_NOUNS, SCRIPTS, read_line
from tailrace.cli.main import NOUNS, build_app
from testkit.programs.commands import Run

TYPED = "in Tailrace's words: tailrace "


@pytest.mark.parametrize(
    "line",
    [
        "",
        "-h",
        "topics",
        "topics -h",
        "topics list --bootstrap-server a:1",
        "topics reassign orders --partition 0 --replicas 1,2",
        "topics create orders --config retention.ms=5",
        "groups move billing orders orders.shared-16 --dry-run",
        "consume orders --offset 5 --partition 0",
        "consume orders --group billing --timeout 3",
        "produce orders --key-separator : --acks all",
        "dump-log 00.log --deep-iteration -- --files",
        "work orders -- --topic orders --create",
        "serve --dev",
    ],
)
def test_a_line_of_tailrace_is_unchanged(line: str) -> None:
    words = line.split()
    assert read_line(words) == (words, None, True)


@pytest.mark.parametrize(
    ("line", "ours"),
    [
        ("topics create --topic orders --partitions 3", "topics create orders --partitions 3"),
        ("topics create --topic=orders", "topics create orders"),
        ("topics --bootstrap-server a:1 list", "topics list --bootstrap-server a:1"),
        ("--bootstrap-server a:1 topics elect", "topics elect --bootstrap-server a:1"),
        ("--bootstrap-server=a:1 work orders -- cat", "work --bootstrap-server=a:1 orders -- cat"),
        ("topics list --exclude-internal", "topics list"),
        ("kafka-topics.sh elect orders", "topics elect orders"),
        ("consume --topic orders --from-beginning", "consume orders --from-beginning"),
        ("consume orders --offset latest --partition 0", "consume orders --partition 0"),
        ("produce --topic orders --sync", "produce orders"),
        ("groups describe --group billing --offsets", "groups describe billing"),
        ("groups describe --all-groups", "groups describe"),
        ("transactions describe --transactional-id tea", "transactions describe tea"),
        ("dump-log --files 00.log", "dump-log 00.log"),
    ],
)
def test_words_that_name_an_argument_or_a_default_are_run(line: str, ours: str) -> None:
    assert read_line(line.split()) == (ours.split(), None, True)


@pytest.mark.parametrize(
    ("line", "ours"),
    [
        ("topics --list", "topics list"),
        ("topics --bootstrap-server a:1 --list", "topics list --bootstrap-server a:1"),
        ("--bootstrap-server a:1 topics --topic t --describe", "topics describe --bootstrap-server a:1 t"),
        ("kafka-topics.sh --create --topic orders --partitions 3", "topics create orders --partitions 3"),
        ("console-consumer --topic orders --timeout-ms 1500", "consume orders --timeout 1.5"),
        ("consume orders --timeout-ms soon", "consume orders --timeout soon"),
        ("consume orders --offset earliest --partition 0", "consume orders --from-beginning --partition 0"),
        ("consume orders --property print.key=true", "consume orders --format key-value"),
        ("consume orders --property=key.separator==", "consume orders --key-separator ="),
        ("consume orders --consumer-property group.id=billing", "consume orders --group billing"),
        (
            "produce orders --broker-list a:1 --request-required-acks -1",
            "produce orders --bootstrap-server a:1 --acks all",
        ),
        ("produce 'my orders' --request-required-acks 1", "produce 'my orders' --acks 1"),
        (
            "groups --reset-offsets --group billing --topic orders --to-current --dry-run",
            "groups reset-offsets billing --topic orders --shift-by 0",
        ),
    ],
)
def test_other_words_are_answered_with_the_line_to_type(line: str, ours: str) -> None:
    assert read_line(shlex.split(line)) == ([], f"{TYPED}{ours}", True)


@pytest.mark.parametrize(
    ("line", "ours"),
    [
        ("start", "serve"),
        ("start --dev --port 9099", "serve --dev --listen 127.0.0.1:9099"),
        ("serve --port=9099", "serve --listen 127.0.0.1:9099"),
        ("up --port 9099", "up --listen 127.0.0.1:9099"),
        ("groups reset billing --to-earliest", "groups reset-offsets billing --to-earliest"),
        ("groups lag", "groups describe"),
        ("groups lag billing -b a:1", "groups describe billing --bootstrap-server a:1"),
        ("groups reset-offsets billing --to-begining", "groups reset-offsets billing --to-earliest"),
        ("groups reset-offsets billing --to-beginning", "groups reset-offsets billing --to-earliest"),
        ("groups reset-offsets billing --to-end", "groups reset-offsets billing --to-latest"),
        ("consume orders -b a:1", "consume orders --bootstrap-server a:1"),
        ("produce -b a:1 orders", "produce --bootstrap-server a:1 orders"),
        ("brokers list -b a:1", "brokers list --bootstrap-server a:1"),
        ("sessions -b a:1", "sessions --bootstrap-server a:1"),
        ("topics elect -b a:1", "topics elect --bootstrap-server a:1"),
    ],
)
def test_words_that_users_guess_are_answered_with_the_line_to_type(line: str, ours: str) -> None:
    assert read_line(line.split()) == ([], f"{TYPED}{ours}", True)


@pytest.mark.parametrize(
    ("line", "start"),
    [
        ("topics delete --topic orders --if-exists", "--if-exists is an option of Kafka's script: a missing topic"),
        ("topics --under-replicated-partitions", "--under-replicated-partitions is an option of Kafka's script: "),
        ("groups --delete-offsets --group billing", "--delete-offsets is an option of Kafka's script: "),
        ("consume --topic orders --property print.value=false", "--property is an option of Kafka's script: "),
        ("consume orders --consumer.config=file", "--consumer.config is an option of Kafka's script: "),
        ("configs --alter", "configs is a script of Kafka: `tailrace topics alter"),
        ("kafka-get-offsets.sh --topic orders", "kafka-get-offsets.sh is a script of Kafka: "),
    ],
)
def test_words_without_a_counterpart_are_answered_with_the_way_out(line: str, start: str) -> None:
    read = read_line(line.split())
    assert (read.answer or "").startswith(start)


@pytest.mark.parametrize("line", ["topics create --topic", "consume --topic", "consume orders --timeout-ms"])
def test_an_option_without_its_value_is_left_to_the_command(line: str) -> None:
    assert read_line(line.split()) == (line.split(), None, True)


def _options(noun: str) -> dict[str, set[str]]:
    """The options of each command of the script's noun; the name is empty for a noun without commands."""
    parsed: Any = typer.main.get_command(build_app([noun]))
    command = parsed.commands[noun]
    commands = {name: command.commands[name] for name in SCRIPTS[noun].commands} or {"": command}
    return {name: {word for param in inner.params for word in param.opts} for name, inner in commands.items()}


@pytest.mark.parametrize("noun", SCRIPTS)
def test_the_table_has_no_option_of_a_command_and_answers_with_options_of_commands(noun: str) -> None:
    script, options = SCRIPTS[noun], _options(noun)
    for command, own in options.items():
        for word in (*script.options, *script.missing):
            is_own = word in own
            assert not is_own or (command, word) == ("reset-offsets", "--topic"), f"{noun} {command} {word}"
    known = set().union(*options.values())
    answers = [word for template in script.options.values() for word in template.split() if word.startswith("--")]
    assert set(answers) <= known


@pytest.mark.parametrize("noun", SCRIPTS)
def test_guesses_are_no_commands_and_mean_commands(noun: str) -> None:
    parsed: Any = typer.main.get_command(build_app([noun]))
    commands = getattr(parsed.commands[noun], "commands", {})
    assert {*SCRIPTS[noun].guesses.values()} <= {*SCRIPTS[noun].commands}
    assert not {*SCRIPTS[noun].guesses} & {*commands}


def test_scripts_belong_to_nouns_and_have_other_names() -> None:
    assert {*SCRIPTS, *SCRIPT_NOUNS.values()} <= {*NOUNS}
    assert not {*OTHER_SCRIPTS} & {*NOUNS}


def test_commands_obey_words_of_kafka_and_answer_others_with_exit_code_2(run: Run) -> None:
    made = run("topics", "create", "--topic", "orders", "--partitions", "2")
    assert (made.code, made.out, made.err) == (0, "", "created topic orders\n")
    described = run("topics", "describe", "--topic", "orders")
    assert (described.code, "PartitionCount: 2" in described.out) == (0, True)
    refused = run("topics", "--delete", "--topic", "orders")
    assert (refused.code, refused.out, refused.err) == (2, "", f"tailrace: {TYPED}topics delete orders\n")
    assert run("topics", "list").out == "orders\n"
