"""`tailrace quorum`: describe, add-controller, remove-controller, recover."""

import json
from pathlib import Path
from typing import Annotated

import typer

from tailrace.cli.output import (
    DEFAULT_BOOTSTRAP,
    BootstrapServer,
    Cell,
    Format,
    Output,
    Row,
    admin_of,
    say,
    show,
    write,
)
from tailrace.client.admin.quorum import QuorumDescription, QuorumEndpoint, QuorumReplicaState
from tailrace.model.errors import ErrorCode, KafkaError
from tailrace.model.ids import TopicId, format_topic_id, parse_topic_id

app = typer.Typer(no_args_is_help=True, rich_markup_mode=None)

_REPLICA_COLUMNS = (
    "NodeId",
    "DirectoryId",
    "LogEndOffset",
    "Lag",
    "LastFetchTimestamp",
    "LastCaughtUpTimestamp",
    "Status",
)
_NAME_WIDTH = 24


@app.callback()
def _noun() -> None:
    """Show and change the metadata quorum."""


@app.command()
def describe(
    status: Annotated[bool, typer.Option("--status", help="The leader and the voters (default).")] = False,
    replication: Annotated[bool, typer.Option("--replication", help="The progress of each replica.")] = False,
    bootstrap_server: BootstrapServer = DEFAULT_BOOTSTRAP,
    output: Output = Format.TABLE,
) -> None:
    """Show the replicas of the cluster's metadata log, and their progress."""
    if status and replication:
        raise typer.BadParameter("say either --status or --replication", param_hint="--status")
    with admin_of(bootstrap_server) as admin:
        described = admin.describe_quorum()
        cluster_id = None if replication else admin.describe_cluster().cluster_id
    if replication:
        show(_replicas(described), _REPLICA_COLUMNS, output)
        return
    row = _status(described, cluster_id)
    if output is Format.JSON:
        show([row], (), output)
        return
    for name, value in row.items():
        text = json.dumps(value) if isinstance(value, list) else "-" if value is None else str(value)
        write(f"{name + ':':<{_NAME_WIDTH}}{text}")


def _status(described: QuorumDescription, cluster_id: str | None) -> Row:
    leader = next((voter for voter in described.voters if voter.replica_id == described.leader_id), None)
    furthest = min(described.voters, key=lambda voter: voter.log_end_offset, default=None)
    return {
        "ClusterId": cluster_id,
        "LeaderId": described.leader_id,
        "LeaderEpoch": described.leader_epoch,
        "HighWatermark": described.high_watermark,
        "MaxFollowerLag": None if furthest is None else described.lag(furthest),
        "MaxFollowerLagTimeMs": _lag_ms(leader, furthest),
        "CurrentVoters": [_member(described, voter) for voter in described.voters],
        "CurrentObservers": [_member(described, observer) for observer in described.observers],
    }


def _lag_ms(leader: QuorumReplicaState | None, follower: QuorumReplicaState | None) -> int | None:
    """The time for which the follower has been behind; None if unknown."""
    if leader is None or follower is None:
        return None
    if follower.replica_id == leader.replica_id:
        return 0
    if leader.last_caught_up_timestamp < 0 or follower.last_caught_up_timestamp < 0:
        return None
    return leader.last_caught_up_timestamp - follower.last_caught_up_timestamp


def _member(described: QuorumDescription, replica: QuorumReplicaState) -> Cell:
    member: dict[str, Cell] = {"id": replica.replica_id}
    if any(replica.directory_id):
        member["directoryId"] = format_topic_id(replica.directory_id)
    endpoints = described.endpoints.get(replica.replica_id)
    if endpoints:
        member["endpoints"] = [f"{each.listener_name}://{each.host}:{each.port}" for each in endpoints]
    return member


def _replicas(described: QuorumDescription) -> list[Row]:
    followers = [voter for voter in described.voters if voter.replica_id != described.leader_id]
    leaders = [voter for voter in described.voters if voter.replica_id == described.leader_id]
    return [
        _replica_row(described, replica, status)
        for status, replicas in (("Leader", leaders), ("Follower", followers), ("Observer", described.observers))
        for replica in replicas
    ]


def _replica_row(described: QuorumDescription, replica: QuorumReplicaState, status: str) -> Row:
    return {
        "NodeId": replica.replica_id,
        "DirectoryId": format_topic_id(replica.directory_id),
        "LogEndOffset": _known(replica.log_end_offset),
        "Lag": described.lag(replica),
        "LastFetchTimestamp": _known(replica.last_fetch_timestamp),
        "LastCaughtUpTimestamp": _known(replica.last_caught_up_timestamp),
        "Status": status,
    }


def _known(number: int) -> int | None:
    return None if number < 0 else number


@app.command("add-controller")
def add_controller(
    config: Annotated[
        Path, typer.Option("--config", metavar="FILE", help="The controller's properties file.", show_default=False)
    ],
    bootstrap_server: BootstrapServer = DEFAULT_BOOTSTRAP,
    output: Output = Format.TABLE,
) -> None:
    """Make a controller that runs and has caught up a voter.

    Its id, directory id and listeners come from its properties file and its directory.
    """
    from tailrace.cli.files.offline_quorum import controller_of

    controller = controller_of(config)
    endpoints = [QuorumEndpoint(listener_name=e.name, host=e.host, port=e.port) for e in controller.endpoints]
    with admin_of(bootstrap_server) as admin:
        admin.add_voter(controller.key.id, controller.key.directory_id, endpoints)
    say(f"controller {controller.key.id} votes, with directory {format_topic_id(TopicId(controller.key.directory_id))}")
    _show_voter(controller.key.id, controller.key.directory_id, output)


def _show_voter(controller_id: int, directory_id: bytes, output: Format) -> None:
    """Print the changed voter, for scripts."""
    if output is Format.JSON:
        show([{"NodeId": controller_id, "DirectoryId": format_topic_id(TopicId(directory_id))}], (), output)


@app.command("remove-controller")
def remove_controller(
    controller_id: Annotated[int, typer.Option("--controller-id", metavar="ID", show_default=False)],
    directory_id: Annotated[
        str | None,
        typer.Option("--controller-directory-id", metavar="ID", help="Default: the directory of the voter of this id."),
    ] = None,
    bootstrap_server: BootstrapServer = DEFAULT_BOOTSTRAP,
    output: Output = Format.TABLE,
) -> None:
    """Make a voter an observer. The controller may go on to follow, or be stopped."""
    with admin_of(bootstrap_server) as admin:
        key = (
            _voting_directory(admin.describe_quorum(), controller_id) if directory_id is None else _parsed(directory_id)
        )
        admin.remove_voter(controller_id, key)
    say(f"controller {controller_id} does not vote any more")
    _show_voter(controller_id, key, output)


def _voting_directory(described: QuorumDescription, controller_id: int) -> bytes:
    for voter in described.voters:
        if voter.replica_id == controller_id:
            return voter.directory_id
    voters = ", ".join(str(voter.replica_id) for voter in described.voters)
    raise KafkaError(ErrorCode.VOTER_NOT_FOUND, f"{controller_id} is no voter; voters: {voters}")


def _parsed(directory_id: str) -> bytes:
    try:
        return parse_topic_id(directory_id)
    except ValueError as fault:
        raise typer.BadParameter(str(fault), param_hint="--controller-directory-id") from None


@app.command()
def recover(
    config: Annotated[
        Path,
        typer.Option(
            "--config", metavar="FILE", help="The node's properties file; it must not run.", show_default=False
        ),
    ],
    force: Annotated[bool, typer.Option("--force", help="Change it. Otherwise only show the losses.")] = False,
) -> None:
    """Make one node the only voter, after the permanent loss of a majority of the voters.

    Changes that the lost voters had committed and this node does not have are lost. The lost voters must never run
    again with their old metadata: empty their directories __cluster_metadata-0, start them, and add them as
    controllers.
    """
    from tailrace.cli.files.offline_quorum import opened_quorum

    with opened_quorum(config) as quorum:
        for line in quorum.what_will_be_lost():
            say(line)
        if not force:
            raise KafkaError(ErrorCode.POLICY_VIOLATION, "nothing was changed; say --force if that is what you want")
        epoch = quorum.make_only_voter()
    say(f"node {quorum.controller.key.id} is the only voter from epoch {epoch} on; start it")
