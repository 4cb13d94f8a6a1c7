"""A client of a group as its host runs the client, with the product's machine, and the laws of one member.

1. "one heartbeat at a time".
2. "nothing is reported released before its release": a heartbeat that names partitions names every partition that the
   member reads. A member that leaves reads nothing.
3. "a member joins with empty hands in epoch 0".
4. "a heartbeat names the epoch of the last answer".
5. "a member outside its group reads nothing": after a fence, a long silence, an overdue poll, and its close.
6. "a partition is released once, and leaves by its release".
7. "only what leaves is released": a partition of the target is released by a close alone.
8. "what comes back is read after its release".
9. "a member that hears nothing stops reading": after a session timeout. The worlds look.

The worlds carry out heartbeats, releases and commits.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from simulation.harness.breach import Breach
from tailrace.client.group.consumer_member import (
    ConsumerEffect,
    ConsumerEvent,
    ConsumerHeartbeatAnswered,
    ConsumerMembership,
    ConsumerState,
    Own,
    Partitions,
    Release,
    Released,
    SendConsumerHeartbeat,
    SendConsumerLeave,
    TargetGiven,
    TopicIdPartition,
)
from tailrace.client.group.membership import Lost
from tailrace.model.errors import ErrorCode

ONE_HEARTBEAT: Final = "one heartbeat at a time"
REPORTED: Final = "nothing is reported released before its release"
JOINS: Final = "a member joins with empty hands in epoch 0"
NAMES_ITS_EPOCH: Final = "a heartbeat names the epoch of the last answer"
OUTSIDE: Final = "a member outside its group reads nothing"
RELEASED_ONCE: Final = "a partition is released once, and leaves by its release"
ONLY_WHAT_LEAVES: Final = "only what leaves is released"
READ_AFTER: Final = "what comes back is read after its release"
SILENT: Final = "a member that hears nothing stops reading"

IN_GROUP: Final = (ConsumerState.JOINED, ConsumerState.LEAVING)
NOTHING: Final[Partitions] = frozenset()


@dataclass(slots=True)
class GroupReader:
    """A member, and what it reads."""

    name: str
    machine: ConsumerMembership
    reading: Partitions = NOTHING
    """From `Own` to the end of the release, or to `Lost`."""
    leaving: Partitions = NOTHING
    """The partitions of `reading` that are being released."""
    positions: dict[TopicIdPartition, int] = field(default_factory=dict)
    """The next record of each partition that the member has begun to read."""
    target: Partitions | None = None
    """The partitions that the coordinator wants the member to have, as far as the member knows."""
    known_epoch: int = 0
    """The epoch in the last answer."""
    is_awaiting: bool = False
    """Whether a heartbeat has no answer yet."""

    def step(self, event: ConsumerEvent, now_ms: int) -> Sequence[ConsumerEffect]:
        """Pass an event to the machine. Raises Breach. Returns all effects: the world carries out the effects that
        take time."""
        match event:
            case TargetGiven(partitions):
                self.target = partitions
            case Released(partitions):
                self._forget(partitions)
            case ConsumerHeartbeatAnswered():
                self.is_awaiting = False
                if event.code is ErrorCode.NONE:
                    self.known_epoch = event.member_epoch
        effects = self.machine.step(event, now_ms)
        for effect in effects:
            self._carry_out(effect)
        if self.machine.state not in IN_GROUP and self.reading:
            raise Breach(OUTSIDE, self.told)
        return effects

    def answer(
        self, code: ErrorCode, epoch: int, assigned: Partitions | None, interval_ms: int, now_ms: int
    ) -> list[ConsumerEffect]:
        """Pass an answer to a heartbeat, and then its assignment, as the host does."""
        answered = ConsumerHeartbeatAnswered(code=code, member_epoch=epoch, heartbeat_interval_ms=interval_ms)
        effects = list(self.step(answered, now_ms))
        if code is ErrorCode.NONE and assigned is not None:
            effects += self.step(TargetGiven(assigned), now_ms)
        return effects

    @property
    def state(self) -> ConsumerState:
        return self.machine.state

    @property
    def without_position(self) -> Partitions:
        """Partitions that the member reads, and whose committed offset it has not looked up yet."""
        return self.reading - self.positions.keys()

    @property
    def told(self) -> str:
        """The state in words."""
        numbers = sorted(place.partition for place in self.reading)
        going = sorted(place.partition for place in self.leaving)
        return f"{self.name}: {self.state.name} in {self.machine.member_epoch}, reads {numbers}, releases {going}"

    def _forget(self, partitions: Partitions) -> None:
        self.reading -= partitions
        self.leaving -= partitions
        for place in partitions:
            self.positions.pop(place, None)

    def _carry_out(self, effect: ConsumerEffect) -> None:
        match effect:
            case SendConsumerHeartbeat():
                self._check_heartbeat(effect)
                self.is_awaiting = True
            case SendConsumerLeave() if self.reading:
                raise Breach(REPORTED, f"{self.told}, and leaves")
            case Release(partitions):
                self._check_release(partitions)
                self.leaving |= partitions
            case Own(partitions):
                self._own(partitions)
            case Lost():
                self._forget(self.reading)

    def _check_heartbeat(self, sent: SendConsumerHeartbeat) -> None:
        if self.is_awaiting:
            raise Breach(ONE_HEARTBEAT, self.told)
        if self.state is ConsumerState.JOINING:
            if self.reading or sent != SendConsumerHeartbeat(0, NOTHING, is_full=True):
                raise Breach(JOINS, f"{self.told}: {sent}")
        elif sent.member_epoch != self.known_epoch:
            raise Breach(NAMES_ITS_EPOCH, f"{self.told}: {sent}, and {self.known_epoch} was answered")
        if sent.owned is not None and not self.reading <= sent.owned:
            raise Breach(REPORTED, f"{self.told}: {sent}")

    def _check_release(self, partitions: Partitions) -> None:
        if partitions & self.leaving or not partitions <= self.reading:
            raise Breach(RELEASED_ONCE, f"{self.told}, and releases {sorted(partitions)}")
        if self.state is not ConsumerState.LEAVING and self.target and partitions & self.target:
            raise Breach(ONLY_WHAT_LEAVES, f"{self.told}, and releases {sorted(partitions)} of {sorted(self.target)}")

    def _own(self, partitions: Partitions) -> None:
        comes, left = partitions - self.reading, self.reading - self.leaving - partitions
        if left:
            raise Breach(RELEASED_ONCE, f"{self.told}, and {sorted(left)} left without a release")
        if partitions & self.leaving:
            raise Breach(READ_AFTER, f"{self.told}, and owns {sorted(partitions)}")
        self.reading |= comes
