"""`tailrace topics elect` and `tailrace topics reassign`: the leaders and the replicas of partitions."""

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from tailrace.cli.completion import topic_names
from tailrace.cli.output import DEFAULT_BOOTSTRAP, BootstrapServer, Format, Output, Row, admin_of, counted, say, show
from tailrace.client.blocking.admin import Admin
from tailrace.model.errors import ErrorCode, KafkaError
from tailrace.model.partitions import ElectionType, TopicPartition

if TYPE_CHECKING:
    from tailrace.client.admin.unclean_elections import LeaderlessPartition

_ELECTION_COLUMNS = ("Topic", "Partition", "Election")
_CANDIDATE_COLUMNS = ("Topic", "Partition", "Replica", "State", "GoodEnd", "AcknowledgedEnd", "Lost", "Choice")
_MOVE_COLUMNS = ("Topic", "Partition", "Replicas", "AddingReplicas", "RemovingReplicas")

Partitions = Annotated[
    list[int] | None,
    typer.Option("--partition", metavar="N", help="Only this partition; may be repeated.", show_default=False),
]


def elect(
    name: Annotated[str | None, typer.Argument(metavar="NAME", show_default=False, autocompletion=topic_names)] = None,
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
            help="With --unclean: elect this replica instead of the recommended replica.",
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
        wanted = None if name is None else admin.topic_partitions(name, partition or None)
        without_leader = admin.describe_leaderless(wanted) if unclean else None
        if without_leader and not force:
            rows = [row for partition in without_leader for row in _candidate_rows(partition)]
            show(rows, _CANDIDATE_COLUMNS, output)
            _say_what_is_lost(without_leader)
            return
        if without_leader is not None:
            results = _elect_named(admin, without_leader, replica)
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


def _candidate_rows(partition: "LeaderlessPartition") -> Iterable[Row]:
    best = partition.recommended
    for candidate in partition.candidates:
        yield {
            "Topic": partition.where.topic,
            "Partition": partition.where.partition,
            "Replica": candidate.broker_id,
            "State": candidate.state,
            "GoodEnd": candidate.good_end,
            "AcknowledgedEnd": candidate.acknowledged_end,
            "Lost": candidate.lost,
            "Choice": "recommended" if candidate is best else "",
            "Fault": candidate.fault,
        }


def _say_what_is_lost(partitions: "Sequence[LeaderlessPartition]") -> None:
    """Print the faults and losses of the candidates, which the table does not show."""
    for partition in partitions:
        where, candidates = partition
        for candidate in candidates:
            if candidate.fault:
                say(f"{where} on broker {candidate.broker_id}: {candidate.state}: {candidate.fault}")
        best = partition.recommended
        if best is None:
            brokers = [candidate.broker_id for candidate in candidates]
            say(f"{where}: no replica can be chosen; start brokers {brokers}")
            continue
        say(f"{where}: with broker {best.broker_id} up to {best.lost} records are lost, from offset {best.good_end} on")
        if any(candidate.state in ("unreachable", "unknown") for candidate in candidates):
            say(f"{where}: a replica that cannot be asked may have more")
    if partitions:
        say("nothing was changed; --force elects the recommended replica, or that of --replica, and gives up the rest")


def _elect_named(
    admin: Admin, partitions: "Sequence[LeaderlessPartition]", replica: int | None
) -> dict[TopicPartition, KafkaError | None]:
    """Elect the recommended replicas, or this replica. Returns None or the error for each partition."""
    results: dict[TopicPartition, KafkaError | None] = {}
    desired: dict[TopicPartition, int] = {}
    for partition in partitions:
        try:
            chosen = partition.chosen(replica)
        except KafkaError as fault:
            results[partition.where] = fault
            continue
        desired[partition.where] = chosen.broker_id
        lost = "an unknown number of" if chosen.lost is None else f"up to {chosen.lost}"
        say(f"{partition.where}: broker {chosen.broker_id} is to lead; {lost} records are given up")
    if desired:
        results |= admin.elect_leaders(list(desired), election_type=ElectionType.UNCLEAN, desired_leaders=desired)
    return results


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
    name: Annotated[str | None, typer.Argument(metavar="NAME", show_default=False, autocompletion=topic_names)] = None,
    partition: Partitions = None,
    replicas: Annotated[
        str | None,
        typer.Option(metavar="ID[,ID...]", help="The brokers that shall have it, the preferred leader first."),
    ] = None,
    cancel: Annotated[bool, typer.Option("--cancel", help="Take back a move that goes on.")] = False,
    bootstrap_server: BootstrapServer = DEFAULT_BOOTSTRAP,
    output: Output = Format.TABLE,
) -> None:
    """Move the replicas of partitions to other brokers, and show the moves under way.

    Without --replicas and --cancel nothing is changed; without a name the moves of all topics are shown.
    """
    if replicas is not None and cancel:
        raise typer.BadParameter("say either --replicas or --cancel", param_hint="--cancel")
    is_change = replicas is not None or cancel
    if name is None and (is_change or partition):
        raise typer.BadParameter("of which topic? name it")
    target = None if replicas is None else _parse_ids(replicas)
    with admin_of(bootstrap_server) as admin:
        wanted = None if name is None else admin.topic_partitions(name, partition or None)
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
    """The text about a changed number of replicas; empty if the number stays."""
    now = set(admin.replication_factors(wanted).values())
    if now <= {factor}:
        return ""
    return f"; replication factor {'-'.join(map(str, sorted({min(now), max(now)})))} -> {factor}"


def _parse_ids(text: str) -> tuple[int, ...]:
    words = text.split(",")
    if not all(word.isascii() and word.isdigit() for word in words):
        raise typer.BadParameter(f"{text!r} is not ID[,ID...]", param_hint="--replicas")
    return tuple(map(int, words))
