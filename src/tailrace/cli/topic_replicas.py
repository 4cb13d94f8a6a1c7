"""`tailrace topics elect` and `tailrace topics reassign`: the leaders and the replicas of partitions."""

from collections.abc import Mapping
from typing import Annotated

import typer

from tailrace.cli.output import DEFAULT_BOOTSTRAP, BootstrapServer, Format, Output, Row, admin_of, counted, say, show
from tailrace.cli.unclean_elections import CANDIDATE_COLUMNS, elect_named, leaderless, say_what_is_lost
from tailrace.client.blocking import Admin
from tailrace.model.errors import ErrorCode, KafkaError
from tailrace.model.partitions import ElectionType, TopicPartition

_ELECTION_COLUMNS = ("Topic", "Partition", "Election")
_MOVE_COLUMNS = ("Topic", "Partition", "Replicas", "AddingReplicas", "RemovingReplicas")

Partitions = Annotated[
    list[int] | None,
    typer.Option("--partition", metavar="N", help="Only this partition; may be repeated.", show_default=False),
]


def elect(
    name: Annotated[str | None, typer.Argument(metavar="NAME", show_default=False)] = None,
    partition: Partitions = None,
    unclean: Annotated[
        bool,
        typer.Option("--unclean", help="For partitions without a leader: show the records that each choice loses."),
    ] = False,
    force: Annotated[
        bool, typer.Option("--force", help="With --unclean: elect; records that the elected replica lacks are lost.")
    ] = False,
    replica: Annotated[
        int | None,
        typer.Option(
            "--replica",
            metavar="ID",
            help="With --unclean: elect this replica instead of the recommended one.",
            show_default=False,
        ),
    ] = None,
    bootstrap_server: BootstrapServer = DEFAULT_BOOTSTRAP,
    output: Output = Format.TABLE,
) -> None:
    """Elect the preferred replicas as leaders again.

    Without a name, in all topics. Partitions that need no election are left out. With --unclean, for partitions
    without a complete replica, nothing is changed without --force. Apache Kafka does not report the log ends of its
    replicas: there --unclean elects any live replica.
    """
    if partition and name is None:
        raise typer.BadParameter("of which topic? name it", param_hint="--partition")
    if force and not unclean:
        raise typer.BadParameter("only an unclean election loses records: --unclean", param_hint="--force")
    if replica is not None and (not unclean or name is None):
        raise typer.BadParameter("of an unclean election of one topic: NAME --unclean", param_hint="--replica")
    with admin_of(bootstrap_server) as admin:
        wanted = None if name is None else _partitions(admin, name, partition)
        without_leader = leaderless(admin, wanted) if unclean else None
        if without_leader and not force:
            show([row for one in without_leader for row in one.rows()], CANDIDATE_COLUMNS, output)
            say_what_is_lost(without_leader)
            return
        if without_leader is not None:
            results = elect_named(admin, without_leader, replica)
        else:
            results = _elect_any(admin, wanted, replica, unclean=unclean)
    _show_elections(results, output)


def _elect_any(
    admin: Admin, wanted: list[TopicPartition] | None, replica: int | None, *, unclean: bool
) -> dict[TopicPartition, KafkaError | None]:
    if replica is not None:
        raise KafkaError(ErrorCode.UNSUPPORTED_VERSION, "this cluster does not elect replicas that are named")
    if unclean:
        say("this cluster tells nothing about its copies: any replica that is alive is elected")
    kind = ElectionType.UNCLEAN if unclean else ElectionType.PREFERRED
    return admin.elect_leaders(wanted, election_type=kind)


def _show_elections(results: Mapping[TopicPartition, KafkaError | None], output: Format) -> None:
    rows: list[Row] = []
    failures = 0
    for where, fault in sorted(results.items()):
        if fault is not None and fault.code is ErrorCode.ELECTION_NOT_NEEDED:
            continue
        failures += fault is not None
        election = "elected" if fault is None else fault.code.name
        rows.append({"Topic": where.topic, "Partition": where.partition, "Election": election})
        if fault is not None:
            say(fault.detail)
    if rows or output is Format.JSON:
        show(rows, _ELECTION_COLUMNS, output)
    if not rows:
        say("no partition needs an election")
    if failures:
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"{counted(failures, 'election')} failed, see above")


def reassign(
    name: Annotated[str | None, typer.Argument(metavar="NAME", show_default=False)] = None,
    partition: Partitions = None,
    replicas: Annotated[
        str | None,
        typer.Option(metavar="ID[,ID...]", help="The brokers that shall have it, the preferred leader first."),
    ] = None,
    cancel: Annotated[bool, typer.Option("--cancel", help="Take back a move that goes on.")] = False,
    bootstrap_server: BootstrapServer = DEFAULT_BOOTSTRAP,
    output: Output = Format.TABLE,
) -> None:
    """Move the replicas of partitions to other brokers, and show the moves that go on.

    Without --replicas and --cancel nothing is changed; without a name the moves of all topics are shown.
    """
    if replicas is not None and cancel:
        raise typer.BadParameter("say either --replicas or --cancel", param_hint="--cancel")
    is_change = replicas is not None or cancel
    if name is None and (is_change or partition):
        raise typer.BadParameter("of which topic? name it")
    target = None if replicas is None else _parse_ids(replicas)
    with admin_of(bootstrap_server) as admin:
        wanted = None if name is None else _partitions(admin, name, partition)
        if wanted is not None and cancel:
            wanted = wanted if partition else list(admin.list_partition_reassignments(wanted))
        if wanted is not None and is_change and wanted:
            before = "" if target is None else _change_of_factor(admin, wanted, len(target))
            admin.alter_partition_reassignments(dict.fromkeys(wanted, target))
            done = "took back the move of" if cancel else "began to move"
            say(f"{done} {counted(len(wanted), 'partition')} of topic {name}{before}")
        moves = admin.list_partition_reassignments(wanted) if wanted != [] else {}
    rows: list[Row] = [
        {
            "Topic": where.topic,
            "Partition": where.partition,
            "Replicas": list(move.replicas),
            "AddingReplicas": list(move.adding_replicas),
            "RemovingReplicas": list(move.removing_replicas),
        }
        for where, move in sorted(moves.items())
    ]
    if rows or output is Format.JSON:
        show(rows, _MOVE_COLUMNS, output)
    if not rows:
        is_done = bool(wanted) and target is not None
        say("the move is complete" if is_done else "no replicas are being moved")


def _change_of_factor(admin: Admin, wanted: list[TopicPartition], factor: int) -> str:
    """The text about a changed number of replicas; empty if it stays."""
    (topic,) = admin.describe_topics([wanted[0].topic])
    moves = admin.list_partition_reassignments(wanted)
    numbers = {where.partition for where in wanted}
    now = set()
    for partition in topic.partitions:
        if partition.partition in numbers:
            move = moves.get(TopicPartition(topic.name, partition.partition))
            # During a move `replicas` has the added replicas already, and the removed ones still.
            now.add(len(partition.replicas) - (0 if move is None else len(move.removing_replicas)))
    if now <= {factor}:
        return ""
    return f"; replication factor {'-'.join(map(str, sorted({min(now), max(now)})))} -> {factor}"


def _partitions(admin: Admin, name: str, numbers: list[int] | None) -> list[TopicPartition]:
    (topic,) = admin.describe_topics([name])
    there = [partition.partition for partition in topic.partitions]
    unknown = [number for number in numbers or () if number not in there]
    if unknown:
        detail = f"topic {name!r} has no partition {unknown[0]}: it has {counted(len(there), 'partition')}, from 0 on"
        raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, detail)
    return [TopicPartition(name, number) for number in dict.fromkeys(numbers or there)]


def _parse_ids(text: str) -> tuple[int, ...]:
    words = text.split(",")
    if not all(word.isascii() and word.isdigit() for word in words):
        raise typer.BadParameter(f"{text!r} is not ID[,ID...]", param_hint="--replicas")
    return tuple(map(int, words))
