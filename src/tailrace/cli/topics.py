"""`tailrace topics`: list, create, describe, delete."""

from typing import Annotated

import typer

from tailrace.cli.output import DEFAULT_BOOTSTRAP, BootstrapServer, Format, Output, Row, admin_of, say, show, write
from tailrace.client.admin import DYNAMIC_TOPIC_CONFIG, TOPIC, NewTopic
from tailrace.client.blocking import Admin
from tailrace.client.cluster_view import PartitionInfo, TopicInfo
from tailrace.model.errors import ErrorCode, KafkaError
from tailrace.model.ids import format_topic_id

app = typer.Typer(no_args_is_help=True, rich_markup_mode=None)

_PARTITION_COLUMNS = ("Topic", "Partition", "Leader", "Replicas", "Isr")


@app.command("list")
def list_topics(
    bootstrap_server: BootstrapServer = DEFAULT_BOOTSTRAP,
    output: Output = Format.TABLE,
    internal: Annotated[bool, typer.Option("--internal", help="Internal topics too.")] = False,
) -> None:
    """List the topics."""
    with admin_of(bootstrap_server) as admin:
        topics = admin.list_topics(include_internal=internal)
    if output is Format.TABLE:
        for topic in topics:
            write(topic.name)
        return
    rows: list[Row] = [{"Topic": topic.name, "PartitionCount": len(topic.partitions)} for topic in topics]
    show(rows, ("Topic", "PartitionCount"), output)


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
) -> None:
    """Create topics."""
    configs = _parse_configs(config or [])
    with admin_of(bootstrap_server) as admin:
        for name in names:
            topic = NewTopic(name=name, partitions=partitions, replication_factor=replication_factor, configs=configs)
            try:
                admin.create_topics([topic])
            except KafkaError as fault:
                if not (if_not_exists and fault.code is ErrorCode.TOPIC_ALREADY_EXISTS):
                    raise
                say(f"topic {name} exists already")
            else:
                say(f"created topic {name}")


def _parse_configs(words: list[str]) -> dict[str, str]:
    configs = {}
    for word in words:
        name, separator, value = word.partition("=")
        if not separator or not name:
            raise typer.BadParameter(f"{word!r} is not NAME=VALUE", param_hint="--config")
        configs[name] = value
    return configs


@app.command()
def describe(
    names: Annotated[list[str] | None, typer.Argument(metavar="[NAME...]", show_default=False)] = None,
    bootstrap_server: BootstrapServer = DEFAULT_BOOTSTRAP,
    output: Output = Format.TABLE,
) -> None:
    """Describe topics, all of them without names: settings, and leader and replicas of each partition."""
    with admin_of(bootstrap_server) as admin:
        topics = admin.describe_topics(names or None)
        configs = {topic.name: _own_configs(admin, topic.name) for topic in topics}
    if output is Format.JSON:
        show([_topic_row(topic, configs[topic.name]) for topic in topics], (), output)
        return
    for topic in topics:
        settings = ",".join(f"{name}={value}" for name, value in configs[topic.name].items())
        write(
            f"Topic: {topic.name}  TopicId: {format_topic_id(topic.topic_id)}  "
            f"PartitionCount: {len(topic.partitions)}  ReplicationFactor: {topic.replication_factor}  "
            f"Configs: {settings}".rstrip()
        )
    rows = [_partition_row(topic.name, partition) for topic in topics for partition in topic.partitions]
    show(rows, _PARTITION_COLUMNS, output)


def _own_configs(admin: Admin, topic: str) -> dict[str, str]:
    """What was set for this topic, without defaults; nothing where the cluster cannot say."""
    try:
        entries = admin.describe_configs(TOPIC, topic)
    except KafkaError as fault:
        if fault.code is not ErrorCode.UNSUPPORTED_VERSION:
            raise
        return {}
    return {entry.name: entry.value or "" for entry in entries if entry.source == DYNAMIC_TOPIC_CONFIG}


def _topic_row(topic: TopicInfo, configs: dict[str, str]) -> Row:
    return {
        "Topic": topic.name,
        "TopicId": format_topic_id(topic.topic_id),
        "PartitionCount": len(topic.partitions),
        "ReplicationFactor": topic.replication_factor,
        "Configs": configs,
        "Partitions": [_partition_row(topic.name, partition) for partition in topic.partitions],
    }


def _partition_row(topic: str, partition: PartitionInfo) -> Row:
    return {
        "Topic": topic,
        "Partition": partition.partition,
        "Leader": partition.leader if partition.leader >= 0 else "none",
        "Replicas": list(partition.replicas),
        "Isr": list(partition.in_sync_replicas),
    }


@app.command()
def delete(
    names: Annotated[list[str], typer.Argument(metavar="NAME...", show_default=False)],
    bootstrap_server: BootstrapServer = DEFAULT_BOOTSTRAP,
) -> None:
    """Delete topics with all their records."""
    with admin_of(bootstrap_server) as admin:
        for name in names:
            admin.delete_topics([name])
            say(f"deleted topic {name}")
