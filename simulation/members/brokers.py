"""Three brokers of which one coordinates a group, and the processes with the group's members."""

from collections.abc import Callable
from types import MappingProxyType
from typing import Final

from simulation.harness.breach import Breach
from simulation.harness.cluster import SimulatedCluster
from simulation.members.coordinator import HeartbeatOutcome, SimulatedCoordinator
from simulation.members.laws import FENCED, FENCES, TWO_READERS
from simulation.members.plan import MemberPlan
from simulation.members.process import GroupProcess
from simulation.members.requests import (
    CommitSent,
    EncodedLog,
    FixedTopics,
    GroupRules,
    GroupView,
    HeartbeatAnswer,
    HeartbeatSent,
    view_of,
)
from tailrace.client.group.consumer_member import Partitions, TopicIdPartition
from tailrace.model.errors import ErrorCode

_BROKERS: Final = (1, 2, 3)
_FIRST_MEMBER: Final = 11
_JOINING: Final = 0


class CoordinatorBroker:
    """A broker that may coordinate the group."""

    def __init__(self, node_id: int, on_change: Callable[[], None]) -> None:
        """`on_change` hears that the broker has come or gone."""
        self.node_id = node_id
        self.is_up = True
        self._on_change = on_change

    def start(self) -> None:
        self.is_up = True
        self._on_change()

    def crash(self) -> None:
        self.is_up = False
        self._on_change()

    def describe(self) -> str:
        return f"{self.node_id} is {'up' if self.is_up else 'down'}"


class GroupBrokers(SimulatedCluster[CoordinatorBroker, MemberPlan]):
    """The nodes are the brokers. The laws are in `members.laws` and `members.reader`."""

    fault_states = MappingProxyType(
        {
            "crash": ("broker crashed",),
            "fail-over": ("another coordinator",),
            "kill": ("process killed",),
            "pause": ("process paused",),
            "close": ("process closed",),
            "isolation": ("process isolated",),
            "slow handlers": ("out of the group: POLL_OVERDUE", "a release outlasts its time"),
        }
    )

    def __init__(self, seed: int, plan: MemberPlan) -> None:
        super().__init__(seed, plan)
        self.nodes = {node_id: CoordinatorBroker(node_id, self._elect) for node_id in _BROKERS}
        suffix = ".shared-8" if plan.has_slots else ""
        self.topics = FixedTopics({f"topic-{number}{suffix}": count for number, count in enumerate(plan.topics)})
        self.slots = range(_FIRST_MEMBER, _FIRST_MEMBER + plan.members)
        """The node ids of members."""
        self.processes: dict[int, GroupProcess] = {}
        """The present process of each member, by node id."""
        self._all: dict[str, GroupProcess] = {}
        """Every process that there was, by the id of its member."""
        self.coordinator_id = _BROKERS[0]
        self.coordinator: SimulatedCoordinator | None = None
        self.done: dict[TopicIdPartition, int] = {}
        """The first record of each partition that no member has processed."""
        self.promised: dict[TopicIdPartition, int] = {}
        """The highest position at which each partition was released, with its commit."""
        self._log: EncodedLog = ()
        """The committed records while there is no coordinator."""
        self._rules = (-1, GroupRules(self.topics))
        self._assignor = "range" if plan.range_assignor else "uniform"

    # brokers

    def _elect(self) -> None:
        """Give the group a coordinator that is up."""
        if self.coordinator is not None and self.nodes[self.coordinator_id].is_up:
            return
        self._close_coordinator()
        ready = [node_id for node_id, node in self.nodes.items() if node.is_up]
        if ready:
            self.coordinator_id = self.world.choice(ready, "election", "group")
            self.world.note(f"{self.coordinator_id} coordinates the group")
            self.coordinator = SimulatedCoordinator(
                self.world,
                self._log,
                self.topics,
                slow_ms=self.plan.slow_replication_ms,
                on_removed=self._removed,
            )

    def move_coordinator(self) -> None:
        """Another broker, or the same, coordinates the group from the committed records."""
        self.world.sometimes["another coordinator"] += 1
        self._close_coordinator()
        self._elect()

    def _close_coordinator(self) -> None:
        coordinator, self.coordinator = self.coordinator, None
        if coordinator is not None:
            survivors = self.world.between(0, coordinator.under_way, "survivors", "group")
            self._log = coordinator.close(survivors)

    @property
    def log(self) -> EncodedLog:
        """The committed records."""
        return self._log if self.coordinator is None else self.coordinator.log

    @property
    def view(self) -> GroupView:
        """The group, with the records that are appended."""
        return view_of(self._log if self.coordinator is None else self.coordinator.latest)

    def committed(self, place: TopicIdPartition) -> int:
        """The committed offset of the partition."""
        return view_of(self.log).offsets.get(place, 0)

    # members

    def begin_process(self, node_id: int) -> None:
        """Start a process for this member."""
        number = node_id - _FIRST_MEMBER
        instance = f"instance-{number}" if number < self.plan.statics else None
        former = self.processes.get(node_id)
        self.world.sometimes["a static member comes back"] += former is not None and instance is not None
        process = GroupProcess(self, node_id, f"{number}-{self.next_number()}", instance)
        self.processes[node_id] = self._all[process.name] = process

    @property
    def is_calm(self) -> bool:
        return not self.nemesis.is_chaos

    @property
    def living(self) -> list[GroupProcess]:
        """The processes that run."""
        return [process for process in self.processes.values() if not process.is_over]

    def _removed(self, name: str) -> None:
        self._all[name].is_removed = True

    # requests

    def take_heartbeat(
        self, broker_id: int, sent: HeartbeatSent, number: int, reply: Callable[[HeartbeatAnswer], None]
    ) -> None:
        """The broker has a heartbeat; `number` counts the heartbeats of the process."""
        if not self.nodes[broker_id].is_up:
            return
        if broker_id != self.coordinator_id or self.coordinator is None:
            reply(HeartbeatAnswer(ErrorCode.NOT_COORDINATOR))
            return
        process = self._all[sent.member]
        if self.plan.is_ordered and number < process.last_number:
            self.world.sometimes["a heartbeat is overtaken"] += 1
            return
        outcome = self.coordinator.heartbeat(sent, tuple(self.topics.counts), self._assignor, reply)
        if outcome.code in FENCES:
            self.world.sometimes[f"a heartbeat is refused: {outcome.code.name}"] += 1
        self._look_at(process, sent, number, outcome)

    def _look_at(self, process: GroupProcess, sent: HeartbeatSent, number: int, outcome: HeartbeatOutcome) -> None:
        """Law 8 of `members.laws`."""
        is_late = number < process.last_number
        process.last_number = max(process.last_number, number)
        if outcome.code in FENCES and not is_late and sent.epoch >= _JOINING:
            is_expected = process.is_removed or process.is_disordered or process.lost_answers > 1
            if not is_expected and outcome.code is not ErrorCode.UNRELEASED_INSTANCE_ID:
                raise Breach(FENCED, f"{process.reader.told}: {sent} is answered with {outcome.code.name}")
        elif is_late and outcome.is_change:
            self.world.sometimes["a heartbeat comes late"] += 1
            process.is_disordered = True
        elif not is_late and sent.epoch == _JOINING and outcome.code is ErrorCode.NONE:
            process.is_removed = process.is_disordered = False

    def take_commit(self, broker_id: int, sent: CommitSent, number: int, reply: Callable[[ErrorCode], None]) -> None:
        """The broker has a commit. A commit that a later commit of its process has overtaken is lost: one connection
        keeps their order."""
        if not self.nodes[broker_id].is_up:
            return
        if broker_id != self.coordinator_id or self.coordinator is None:
            reply(ErrorCode.NOT_COORDINATOR)
            return
        process = self._all[sent.member]
        if number < process.last_commit:
            self.world.sometimes["a commit is overtaken"] += 1
            return
        process.last_commit = number

        def answered(code: ErrorCode) -> None:
            if code in FENCES:
                self.world.sometimes[f"a commit is refused: {code.name}"] += 1
            reply(code)

        self.coordinator.commit(sent, answered)

    # laws

    def check(self) -> None:
        """Law 5 of `members.laws`, and the silence of members."""
        view = self.view
        for process in self.living:
            process.check()
            reader = process.reader
            alien = reader.reading - view.holds.get(reader.name, frozenset())
            if alien:
                self._check_fenced(process, alien, view)

    def _check_fenced(self, process: GroupProcess, alien: Partitions, view: GroupView) -> None:
        """The next words of a member that reads what is not its own are refused."""
        self.world.sometimes["a member reads and does not know that it is fenced"] += 1
        if self._rules[0] != self.topics.version:
            self._rules = (self.topics.version, GroupRules(self.topics))
        rules = self._rules[1]
        log = self._log if self.coordinator is None else self.coordinator.latest
        reader, machine = process.reader, process.reader.machine
        word = HeartbeatSent(reader.name, machine.member_epoch, tuple(sorted(machine.owned)), instance=process.instance)
        offsets = tuple((place, 0) for place in sorted(alien))
        commit = CommitSent(reader.name, machine.member_epoch, offsets, process.instance)
        codes = (rules.heartbeat(log, word).answer.code, rules.commit(log, commit).code)
        if not FENCES.issuperset(codes):
            told = f"{reader.told}, of which {sorted(alien)} is not its own in {view.holds}"
            raise Breach(TWO_READERS, f"{told}, and its words are answered with {[code.name for code in codes]}")

    @property
    def progress(self) -> str:
        """The group, and what its members read."""
        group = self.view.group
        told = "no group" if group is None else f"{group.state} in epoch {group.epoch} with {sorted(group.members)}"
        return "; ".join((told, *(process.reader.told for process in self.living)))
