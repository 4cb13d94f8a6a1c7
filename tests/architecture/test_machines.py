"""Every machine has a shape of `model.machines`, as the type checker sees below; and there is no other machine."""

import ast
import importlib
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from tailrace.client.group.classic_member import ClassicMembership
from tailrace.client.group.consumer_member import ConsumerMembership
from tailrace.coordinators.groups.coordinator import GroupCoordinator
from tailrace.coordinators.groups.membership import GroupMembership
from tailrace.coordinators.transactions.coordinator import TransactionCoordinator
from tailrace.metadata.controller import ControllerMachine
from tailrace.model.machines import KeyedMachine, Machine, StagedMachine, SteppedMachine
from tailrace.raft.node import RaftNode
from tailrace.replication.replica_fetcher import ReplicaFetcher

if TYPE_CHECKING:
    from tailrace.client.group.classic_member import Effect as ClassicEffect
    from tailrace.client.group.classic_member import Event as ClassicEvent
    from tailrace.client.group.consumer_member import ConsumerEffect, ConsumerEvent
    from tailrace.coordinators.groups.commands import Command as GroupCommand
    from tailrace.coordinators.groups.events import Effect as GroupEffect
    from tailrace.coordinators.groups.events import Event as GroupEvent
    from tailrace.coordinators.groups.records import GroupLogRecord
    from tailrace.coordinators.transactions.commands import Command, Response
    from tailrace.coordinators.transactions.records import CoordinatorRecord
    from tailrace.metadata.commands import ControllerCommand, ControllerResponse
    from tailrace.metadata.image import ClusterImage, ImageDelta
    from tailrace.metadata.records.kinds import MetadataRecord
    from tailrace.model.errors import ErrorCode
    from tailrace.raft.effects import Effect as RaftEffect
    from tailrace.raft.events import Event as RaftEvent
    from tailrace.replication.fetcher_events import Effect as FollowerEffect
    from tailrace.replication.fetcher_events import Event as FollowerEvent

    _raft: Machine[RaftEvent, RaftEffect] = cast(RaftNode, None)
    _follower: Machine[FollowerEvent, FollowerEffect] = cast(ReplicaFetcher, None)
    _classic: Machine[ClassicEvent, ClassicEffect] = cast(ClassicMembership, None)
    _consumer: Machine[ConsumerEvent, ConsumerEffect] = cast(ConsumerMembership, None)
    _group: Machine[GroupEvent, GroupEffect] = cast(GroupMembership, None)
    _groups: KeyedMachine[str, GroupEvent, GroupEffect] = cast(GroupCoordinator, None)
    _offsets: StagedMachine[GroupCommand, GroupLogRecord, tuple[ErrorCode, ...]] = cast(GroupCoordinator, None)
    _transactions: StagedMachine[Command, CoordinatorRecord, Response] = cast(TransactionCoordinator, None)
    _controller: SteppedMachine[ControllerCommand, MetadataRecord, ControllerResponse, ClusterImage, ImageDelta] = cast(
        ControllerMachine, None
    )

SHAPES: dict[type, set[Any]] = {
    RaftNode: {Machine},
    ReplicaFetcher: {Machine},
    ClassicMembership: {Machine},
    ConsumerMembership: {Machine},
    GroupMembership: {Machine},
    GroupCoordinator: {KeyedMachine, StagedMachine},
    TransactionCoordinator: {StagedMachine},
    ControllerMachine: {SteppedMachine},
}
PARTS = {"tailrace.coordinators.groups.removals.GroupRemovals"}
"""Cores that have `decide`, for the machine of which a core is part."""

SRC = Path(__file__).parents[2] / "src"


def _classes_that_decide() -> Iterator[str]:
    """The classes of cores that take an event or a command with the present time."""
    for package in ("client", "coordinators", "metadata", "raft", "replication"):
        for path in sorted((SRC / "tailrace" / package).rglob("*.py")):
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.ClassDef) and any(map(_is_of_a_machine, node.body)):
                    yield ".".join([*path.relative_to(SRC).with_suffix("").parts, node.name])


def _is_of_a_machine(statement: ast.stmt) -> bool:
    return (
        isinstance(statement, ast.FunctionDef)
        and statement.name in ("step", "decide", "deciding")
        and any(argument.arg == "now_ms" for argument in statement.args.args)
    )


def test_there_is_no_machine_of_another_shape() -> None:
    found = set(_classes_that_decide())
    assert found == {f"{machine.__module__}.{machine.__qualname__}" for machine in SHAPES} | PARTS


def test_every_machine_has_what_its_shapes_name() -> None:
    """Names and parameters; their types are the type checker's."""
    for machine, shapes in SHAPES.items():
        for shape in shapes:
            for name, of_shape in vars(shape).items():
                if not name.startswith("_"):
                    of_machine = getattr(machine, name)
                    assert isinstance(of_shape, property) == isinstance(of_machine, property), (machine, name)


def test_every_shape_is_that_of_a_machine() -> None:
    module = importlib.import_module("tailrace.model.machines")
    shapes = {
        value for value in vars(module).values() if isinstance(value, type) and getattr(value, "_is_protocol", False)
    }
    assert shapes - {vars(module)["Protocol"]} == set().union(*SHAPES.values())
