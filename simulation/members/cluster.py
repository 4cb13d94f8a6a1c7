"""A group on three brokers under faults: members join, stand still, end and come back, and the coordinator moves."""

from collections.abc import Collection

from simulation.harness.breach import Breach
from simulation.harness.turns import Turn
from simulation.members.brokers import GroupBrokers
from simulation.members.laws import SETTLES
from simulation.members.nemesis import MemberNemesis
from simulation.members.plan import HEARTBEAT_MS, LONGEST_PAUSE_MS, MemberPlan
from simulation.members.process import CHANGES
from simulation.members.requests import GroupView, view_of
from tailrace.client.group.consumer_member import ConsumerState
from tailrace.client.group.membership import SubscriptionChanged
from tailrace.coordinators.groups.consumer.group import ConsumerGroupState

_ENOUGH_CHANGES = 20


class MemberCluster(GroupBrokers):
    """The laws are in `members.laws` and `members.reader`."""

    nemesis: MemberNemesis

    def __init__(self, seed: int, plan: MemberPlan, only: Collection[Turn] | None = None) -> None:
        """`only`: the turns of the nemesis that are taken before calm begins; None means every turn."""
        super().__init__(seed, plan)
        self.nemesis = MemberNemesis(self, only)

    @property
    def changes(self) -> int:
        """The number of times that partitions came to a process, or left."""
        return self.world.sometimes[CHANGES]

    @property
    def counts(self) -> bool:
        return super().counts and self.changes >= _ENOUGH_CHANGES

    # The run

    def _begin(self) -> None:
        self._elect()
        for node_id in self.slots:
            self.begin_process(node_id)
        self.world.after_event.append(self.check)
        self.nemesis.start()

    def _calm(self) -> None:
        super()._calm()
        for node in self.nodes.values():
            self.revive(node)

    def _converge(self) -> None:
        self.world.run(until_ms=self.world.now_ms + LONGEST_PAUSE_MS)  # long handlers and pauses end
        if not self.living:
            self.begin_process(self.slots[0])
        if not self.plan.is_ordered:
            for process in self.living:
                process.step(SubscriptionChanged())
        until_ms = self.world.now_ms + self.plan.converge_ms
        if not self.world.run(until_ms=until_ms, stop=self._is_at_rest):
            raise Breach(SETTLES, self.describe())

    def _is_at_rest(self) -> bool:
        """Whether each partition has one reader, and all members are in the newest epoch."""
        coordinator, view = self.coordinator, self.view
        if coordinator is None or view_of(coordinator.log).group != view.group:
            return False
        readers = [process.reader for process in self.living]
        if {reader.name for reader in readers} != view.members:
            return False
        return (
            all(reader.state is ConsumerState.JOINED and not reader.leaving for reader in readers)
            and all(reader.reading == view.holds[reader.name] for reader in readers)
            and self._is_newest(view)
            and frozenset().union(*view.holds.values()) == self.topics.partitions
        )

    def _is_newest(self, view: GroupView) -> bool:
        group = view.group
        if group is None or group.state is not ConsumerGroupState.STABLE:
            return False
        return all(process.reader.machine.member_epoch == group.epoch for process in self.living)

    def _check_end(self) -> None:
        """Nothing changes any more."""
        before = (self.view.group, self.view.holds, self.changes)
        self.world.run(until_ms=self.world.now_ms + 5 * HEARTBEAT_MS)
        if (self.view.group, self.view.holds, self.changes) != before or not self._is_newest(self.view):
            raise Breach(SETTLES, f"and changes again: {self.describe()}")


def run_seed(seed: int) -> MemberCluster:
    """Run one seed. Raises Breach."""
    cluster = MemberCluster(seed, MemberPlan.of(seed))
    cluster.run()
    return cluster
