"""`tailrace topics`: list, create, alter, describe, delete, elect, reassign."""

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Annotated

import typer

from tailrace.cli.completion import topic_names
from tailrace.cli.output import (
    DEFAULT_BOOTSTRAP,
    BootstrapServer,
    Format,
    Output,
    Row,
    admin_of,
    counted,
    say,
    show,
    write,
)
from tailrace.cli.topics import replicas
from tailrace.cli.topics.setting_changes import Configs, DeletedConfigs, changes_of, check_known, parse_configs
from tailrace.client.admin.topics import NewTopic
from tailrace.client.blocking.admin import Admin
from tailrace.client.cluster_view import PartitionInfo, TopicInfo
from tailrace.model.errors import ErrorCode, KafkaError
from tailrace.model.ids import format_topic_id
from tailrace.model.partitions import TopicPartition

if TYPE_CHECKING:
    from tailrace.client.admin.eligible_leaders import EligibleLeaders

app = typer.Typer(no_args_is_help=True, rich_markup_mode=None)

_TOPIC_COLUMNS = ("Topic", "TopicId", "PartitionCount", "ReplicationFactor")
_PARTITION_COLUMNS = ("Topic", "Partition", "Leader", "Replicas", "Isr", "Elr", "LastKnownElr")
_NOT_REPORTED = "N/A"
"""Kafka's word for eligible leaders that the cluster does not report."""


@app.command("list")
def list_topics(
    bootstrap_server: BootstrapServer = DEFAULT_BOOTSTRAP,
    output: Output = Format.TABLE,
    internal: Annotated[bool, typer.Option("--internal", help="Internal topics too.")] = False,
) -> None:
    """List the topics."""
    with admin_of(bootstrap_server) as admin:
        topics = admin.list_topics(include_internal=internal)
    if output is Format.JSON:
        show([_topic_row(topic) for topic in topics], _TOPIC_COLUMNS, output)
        return
    for topic in topics:
        write(topic.name)
    _say_if_none(topics)


def _say_if_none(topics: Iterable[TopicInfo]) -> None:
    if not any(topics):
        say("there are no topics yet (`tailrace topics create NAME` makes a topic)")


@app.command()
def create(
    names: Annotated[list[str], typer.Argument(metavar="NAME...", show_default=False)],
    partitions: Annotated[int, typer.Option(help="How many; -1: the cluster's default.")] = -1,
    replication_factor: Annotated[int, typer.Option(help="Copies of each; -1: the cluster's default.")] = -1,
    config: Annotated[
        list[str] | None, typer.Option("--config", metavar="NAME=VALUE", help="A setting; may be repeated.")
    ] = None,
    if_not_exists: Annotated[bool, typer.Option("--if-not-exists", help="Leave a topic that exists as it is.")] = False,
    bootstrap_server: BootstrapServer = DEFAULT_BOOTSTRAP,
    output: Output = Format.TABLE,
) -> None:
    """Create topics."""
    configs = parse_configs(config or [])
    created: list[str] = []
    with admin_of(bootstrap_server) as admin:

        def create_one(name: str) -> None:
            topic = NewTopic(name=name, partitions=partitions, replication_factor=replication_factor, configs=configs)
            try:
                admin.create_topics([topic])
            except KafkaError as fault:
                if fault.code is not ErrorCode.TOPIC_ALREADY_EXISTS:
                    raise
                if not if_not_exists:
                    raise KafkaError(fault.code, f"{fault.detail} (--if-not-exists leaves it as it is)") from None
                say(f"topic {name} exists already")
            else:
                created.append(name)
                say(f"created topic {name}")

        try:
            _for_each(names, create_one)
        finally:
            if output is Format.JSON:
                made = admin.describe_topics(created) if created else []
                show([_topic_row(topic) for topic in made], _TOPIC_COLUMNS, output)


def _for_each(names: list[str], action: Callable[[str], None]) -> None:
    """Call `action` for every name, also after failures. Raises KafkaError after a failure."""
    if len(names) == 1:
        action(names[0])
        return
    failures = 0
    for name in names:
        try:
            action(name)
        except KafkaError as fault:
            if fault.code in (ErrorCode.NETWORK_EXCEPTION, ErrorCode.REQUEST_TIMED_OUT):
                raise  # the cluster does not answer: it would not answer for the next name either
            say(fault.detail)
            failures += 1
    if failures:
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"{failures} of {len(names)} topics failed, see above")


@app.command()
def alter(
    name: Annotated[str, typer.Argument(metavar="NAME", show_default=False, autocompletion=topic_names)],
    partitions: Annotated[
        int | None, typer.Option(help="The new total number; more than now.", min=1, show_default=False)
    ] = None,
    config: Configs = None,
    delete_config: DeletedConfigs = None,
    bootstrap_server: BootstrapServer = DEFAULT_BOOTSTRAP,
    output: Output = Format.TABLE,
) -> None:
    """Change settings, add partitions.

    Records are not moved; with more partitions the next record of a key may go to another partition.
    """
    changes = changes_of(config, delete_config)
    if partitions is None and not changes:
        raise typer.BadParameter("nothing to change: name --partitions, --config or --delete-config")
    with admin_of(bootstrap_server) as admin:
        if delete_config:
            check_known(admin.describe_topic_configs([name])[name], delete_config, kind="topic")
        if changes:
            from tailrace.client.admin.configs import TOPIC

            admin.alter_configs(TOPIC, name, changes)
            say(f"altered the settings of topic {name}")
        if partitions is not None:
            admin.create_partitions({name: partitions})
            say(f"topic {name} has {counted(partitions, 'partition')}")
        if output is Format.JSON:
            topics = admin.describe_topics([name])
            show([{**_topic_row(topics[0]), "Configs": _own_configs(admin, topics)[name]}], _TOPIC_COLUMNS, output)


@app.command()
def describe(
    names: Annotated[
        list[str] | None, typer.Argument(metavar="[NAME...]", show_default=False, autocompletion=topic_names)
    ] = None,
    bootstrap_server: BootstrapServer = DEFAULT_BOOTSTRAP,
    output: Output = Format.TABLE,
) -> None:
    """Show settings, leaders and replicas.

    Without names, of all topics.
    """
    with admin_of(bootstrap_server) as admin:
        topics = admin.describe_topics(dict.fromkeys(names) if names else None)
        configs = _own_configs(admin, topics)
        eligible = admin.describe_eligible_leaders([topic.name for topic in topics])
    if output is Format.JSON:
        show([_description(topic, configs[topic.name], eligible) for topic in topics], (), output)
        return
    for number, topic in enumerate(topics):
        if number:
            write("")
        settings = ",".join(f"{name}={value}" for name, value in configs[topic.name].items())
        row: Row = {**_topic_row(topic), "ReplicationFactor": _replication_factors(topic), "Configs": settings}
        words = (f"{name}: {value}" for name, value in row.items())
        write("  ".join(words).rstrip())
        show(
            [_table_row(topic.name, partition, eligible) for partition in topic.partitions], _PARTITION_COLUMNS, output
        )
    _say_if_none(topics)


def _own_configs(admin: Admin, topics: list[TopicInfo]) -> dict[str, dict[str, str]]:
    """The topics' own settings, without defaults; empty if the cluster cannot describe settings."""
    from tailrace.client.admin.configs import DYNAMIC_TOPIC_CONFIG

    names = [topic.name for topic in topics]
    try:
        entries = admin.describe_topic_configs(names) if names else {}
    except KafkaError as fault:
        if fault.code is not ErrorCode.UNSUPPORTED_VERSION:
            raise
        entries = {}
    return {
        name: {entry.name: entry.value or "" for entry in entries.get(name, ()) if entry.source == DYNAMIC_TOPIC_CONFIG}
        for name in names
    }


def _topic_row(topic: TopicInfo) -> Row:
    return {
        "Topic": topic.name,
        "TopicId": format_topic_id(topic.topic_id),
        "PartitionCount": len(topic.partitions),
        "ReplicationFactor": topic.replication_factor,
    }


def _replication_factors(topic: TopicInfo) -> str:
    """`3`, or `2-3` where partitions differ."""
    counts = {len(partition.replicas) for partition in topic.partitions}
    return "-".join(map(str, sorted({min(counts, default=0), max(counts, default=0)})))


Eligible = Mapping[TopicPartition, "EligibleLeaders"]


def _description(topic: TopicInfo, configs: dict[str, str], eligible: Eligible) -> Row:
    partitions = [_partition_row(topic.name, partition, eligible) for partition in topic.partitions]
    return {**_topic_row(topic), "Configs": configs, "Partitions": partitions}


def _partition_row(topic: str, partition: PartitionInfo, eligible: Eligible) -> Row:
    leaders = eligible.get(TopicPartition(topic, partition.partition))
    return {
        "Topic": topic,
        "Partition": partition.partition,
        "Leader": partition.leader if partition.leader >= 0 else None,
        "Replicas": list(partition.replicas),
        "Isr": list(partition.in_sync_replicas),
        "Elr": None if leaders is None else list(leaders.replicas),
        "LastKnownElr": None if leaders is None else list(leaders.last_known),
    }


def _table_row(topic: str, partition: PartitionInfo, eligible: Eligible) -> Row:
    """The row in Kafka's words: `none` without a leader, `N/A` if the eligible leaders are not reported."""
    row = _partition_row(topic, partition, eligible)
    words = {"Leader": "none", "Elr": _NOT_REPORTED, "LastKnownElr": _NOT_REPORTED}
    return {name: words.get(name) if cell is None else cell for name, cell in row.items()}


@app.command()
def delete(
    names: Annotated[list[str], typer.Argument(metavar="NAME...", show_default=False, autocompletion=topic_names)],
    bootstrap_server: BootstrapServer = DEFAULT_BOOTSTRAP,
    output: Output = Format.TABLE,
) -> None:
    """Delete topics with all their records."""
    deleted: list[Row] = []
    with admin_of(bootstrap_server) as admin:

        def delete_one(name: str) -> None:
            admin.delete_topics([name])
            deleted.append({"Topic": name})
            say(f"deleted topic {name}")

        try:
            _for_each(names, delete_one)
        finally:
            if output is Format.JSON:
                show(deleted, ("Topic",), output)


app.command("elect")(replicas.elect)
app.command("reassign")(replicas.reassign)
