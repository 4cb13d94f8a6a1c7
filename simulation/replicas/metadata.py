"""The cluster's metadata in a simulated world of brokers: one controller that never fails, and images that come late.

Other simulations check that several nodes agree on the metadata (`quorum.cluster`). Here the product's controller
decides at once; its decisions reach each broker in order, some time later, sometimes several changes together.
"""

from collections.abc import Callable
from typing import Any, Final, NamedTuple, Protocol

from simulation.harness.network import Network
from simulation.harness.world import Life, World
from tailrace.metadata.broker_commands import FenceSilentBroker, FinalizeMetadataVersion
from tailrace.metadata.commands import AlterPartition
from tailrace.metadata.image import EMPTY_IMAGE, ClusterImage, ImageDelta
from tailrace.metadata.snapshot_image import difference
from tailrace.model.errors import ErrorCode, KafkaError
from testkit.quorum.controllers import controller_machine

CONTROLLER: Final = 0
"""The controller's address in the network."""
DEADLINE_MS: Final = 600
"""The time after which a broker does not wait for an answer any more."""
SESSION_MS: Final = 2_500


class Change(NamedTuple):
    """The image after one command, and the offset after its last record."""

    image: ClusterImage
    delta: ImageDelta
    end_offset: int


class Subscriber(Protocol):
    """A broker, as the controller sees the broker."""

    life: Life
    applied: int
    """The number of changes that the broker has applied."""

    @property
    def node_id(self) -> int: ...

    @property
    def is_up(self) -> bool: ...

    def apply(self, image: ClusterImage, delta: ImageDelta, end_offset: int) -> None: ...


class ReplicaMetadata:
    """The controller, and the way to and from this controller."""

    def __init__(self, world: World, network: Network, *, latest_ms: int) -> None:
        """`latest_ms`: how late a change may come to a broker."""
        self._world = world
        self._network = network
        self._latest_ms = latest_ms
        self._machine = controller_machine(broker_session_timeout_ms=SESSION_MS)
        self.changes = [Change(EMPTY_IMAGE, ImageDelta(), 0)]
        self.before_decision: Callable[[Subscriber, Any], None] = lambda subscriber, command: None
        """Called with a broker's command, when the command has come."""
        self._subscribers: list[Subscriber] = []
        self._pumping: set[Life] = set()
        self._held: set[int] = set()
        self.decide(FinalizeMetadataVersion())  # the rules of this release: with eligible leaders

    @property
    def image(self) -> ClusterImage:
        """The committed image."""
        return self.changes[-1].image

    def watch_sessions(self) -> None:
        """Fence silent brokers, from now on."""
        self.decide(FenceSilentBroker())
        self._world.after(250, self.watch_sessions)

    def decide(self, command: Any) -> Any:
        """Decide a command; returns the answer, while the change is on its way to all nodes."""
        end_offset = self.changes[-1].end_offset
        try:
            decision = self._machine.decide(command, self._world.now_ms, next_offset=end_offset)
        except KafkaError as refusal:
            return refusal
        if decision.records:
            delta = self._machine.apply_all(decision.records)
            self.changes.append(Change(self._machine.image, delta, end_offset + len(decision.records)))
            for subscriber in self._subscribers:
                self.pump(subscriber)
        return decision.response

    # To the brokers

    def subscribe(self, subscriber: Subscriber) -> None:
        """Bring all later changes to this broker."""
        self._subscribers.append(subscriber)

    def pump(self, subscriber: Subscriber) -> None:
        """Send changes to a broker that is up."""
        if not subscriber.is_up or subscriber.node_id in self._held:
            return
        if subscriber.life not in self._pumping and subscriber.applied < len(self.changes):
            self._pumping.add(subscriber.life)
            self._deliver_soon(subscriber)

    def hold(self, subscriber: Subscriber) -> None:
        """Bring the broker no changes until `let_go`: the broker is a quorum replica whose disk hangs."""
        self._held.add(subscriber.node_id)

    def let_go(self, subscriber: Subscriber) -> None:
        """Bring the broker the changes that it has missed."""
        self._held.discard(subscriber.node_id)
        self.pump(subscriber)

    def _deliver_soon(self, subscriber: Subscriber) -> None:
        delay_ms = self._world.between(0, self._latest_ms, "image", subscriber.node_id)
        self._world.after(delay_ms, lambda: self._deliver(subscriber), subscriber.life)

    def _deliver(self, subscriber: Subscriber) -> None:
        if subscriber.node_id in self._held:
            self._pumping.discard(subscriber.life)
            return
        if not self._network.passes(CONTROLLER, subscriber.node_id):
            self._deliver_soon(subscriber)
            return
        behind = len(self.changes) - subscriber.applied
        at_once = behind if self._world.chance(0.3, "images at once", subscriber.node_id) else 1
        before = self.changes[subscriber.applied - 1]
        change = self.changes[subscriber.applied + at_once - 1]
        delta = change.delta if at_once == 1 else difference(before.image, change.image)
        subscriber.applied += at_once
        subscriber.apply(change.image, delta, change.end_offset)
        if subscriber.applied < len(self.changes):
            self._deliver_soon(subscriber)
        else:
            self._pumping.discard(subscriber.life)

    # From the brokers

    def ask(self, subscriber: Subscriber, command: Any, on_done: Callable[[Any], None]) -> None:
        """Have a broker's command decided.

        The answer comes when the broker has applied the changes of the command (at once to a replica that leaves), or
        it is lost.
        """
        life, world = subscriber.life, self._world
        is_leaving = isinstance(command, AlterPartition) and any(change.leaving for change in command.changes)
        is_answered = False

        def answer(outcome: Any) -> None:
            nonlocal is_answered
            if not is_answered:
                is_answered = True
                on_done(outcome)

        def when_applied(outcome: Any, changes: int) -> None:
            if is_leaving or subscriber.applied >= changes:
                answer(outcome)
            else:
                world.after(5, lambda: when_applied(outcome, changes), life)

        def deliver() -> None:
            self.before_decision(subscriber, command)
            outcome = self.decide(command)
            changes = len(self.changes)
            self._network.send(
                CONTROLLER,
                subscriber.node_id,
                lambda: None if life.is_over else when_applied(outcome, changes),
            )

        self._network.send(subscriber.node_id, CONTROLLER, deliver)
        late = KafkaError(ErrorCode.REQUEST_TIMED_OUT, "no controller has answered")
        world.after(DEADLINE_MS, lambda: answer(late), life)
