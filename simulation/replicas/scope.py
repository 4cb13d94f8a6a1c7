"""A partition with three copies as an immutable world, for `small_scope`: every order of a few writes and faults.

The rules are the product's: `replication.leadership` for the high watermark and the in-sync replicas,
`replication.follower_replica.cut_offset` for truncation, `metadata.rules_26` for elections. The rest of a partition is
as simple as possible: a log is a tuple of (leader epoch, value) with the number of flushed entries, and a flush is an
action of its own. Each broker learns the controller's decisions in an action of its own, too.

Laws, in every world:
- committed records stay, on the leader of the newest epoch and on every replica that may still become its leader;
- below its high watermark every replica has what is committed;
- no replica is cut below its high watermark.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Final, NamedTuple

from simulation.harness.small_scope import Fingerprints
from tailrace.metadata import rules_26
from tailrace.model.errors import ErrorCode, KafkaError
from tailrace.model.ids import NO_LEADER, BrokerId, LeaderEpoch, TopicId
from tailrace.model.partitions import OffsetAndEpoch, PartitionState
from tailrace.replication.follower_replica import cut_offset
from tailrace.replication.in_sync import has_enough_in_sync
from tailrace.replication.leadership import AfterAnswer, Horizon, InSyncProposal, Leadership
from tailrace.replication.replica_progress import FollowerFetch, ReplicaProgress
from tailrace.storage.epoch_cache import EpochCache

IDS: Final = tuple(BrokerId(number) for number in (1, 2, 3))
MIN_IN_SYNC: Final = 2
Entry = tuple[int, int]
"""(leader epoch, value)"""


class ReplicaBudget(NamedTuple):
    """The numbers of events that may still happen."""

    writes: int = 0
    crashes: int = 0
    shrinks: int = 0
    """Replicas that are taken for slow."""
    alarms: int = 0
    """Brokers that are fenced although they live."""
    copies: int = 0
    """Refused proposals with another copy still on the way."""


class Agreed(NamedTuple):
    """The decisions of the controller."""

    state: PartitionState
    fenced: frozenset[BrokerId] = frozenset()


class Heard(NamedTuple):
    """An answer on its way to a follower."""

    leader_epoch: int
    offset: int
    high_watermark: int
    entries: tuple[Entry, ...] = ()
    diverging: OffsetAndEpoch | None = None


class BrokerCopy(NamedTuple):
    """A broker and its replica."""

    known: Agreed
    is_up: bool = True
    log: tuple[Entry, ...] = ()
    flushed: int = 0
    high_watermark: int = 0
    leaders_mark: int = 0
    """The high watermark in the leader's last answer."""
    led_from: int = 0
    """The start offset of the epoch in which it leads."""
    fetched: tuple[tuple[BrokerId, int], ...] = ()
    """On a leader: the last fetch offset of each follower."""
    pending: InSyncProposal | None = None
    doubted: tuple[BrokerId, ...] = ()
    heard: Heard | None = None


class ReplicaWorld(NamedTuple):
    """The state of the whole world."""

    copies: tuple[BrokerCopy, ...]
    agreed: Agreed
    committed: tuple[Entry, ...]
    budget: ReplicaBudget
    late: tuple[InSyncProposal, ...] = ()
    """Copies of refused proposals."""


class ReplicaAction(NamedTuple):
    """A possible event, and its node."""

    kind: str
    broker: BrokerId
    detail: int = 0


class ReplicaScope:
    """A `harness.small_scope.Model`."""

    def __init__(self) -> None:
        self.sometimes: set[str] = set()
        self._fingerprints = Fingerprints(_plain)

    def start(self, budget: ReplicaBudget) -> ReplicaWorld:
        """Three replicas in sync, the first of them leads."""
        agreed = Agreed(
            PartitionState(
                topic_id=TopicId(b"t" * 16),
                replicas=IDS,
                in_sync_replicas=IDS,
                leader=IDS[0],
                leader_epoch=LeaderEpoch(0),
                partition_epoch=0,
            )
        )
        return ReplicaWorld(tuple(BrokerCopy(agreed) for _ in IDS), agreed, (), budget)

    def name(self, action: ReplicaAction) -> str:
        return f"{action.kind} {action.broker}" + (f" ({action.detail})" if action.detail else "")

    def fingerprint(self, world: ReplicaWorld) -> int:
        return self._fingerprints.of((*world.copies, *world[1:]))

    def actions(self, world: ReplicaWorld) -> Sequence[ReplicaAction]:
        actions = [action for broker in IDS for action in self._of(world, broker)]
        fenced = world.agreed.fenced
        for number, proposal in enumerate(world.late):
            if _is_current(proposal, world.agreed.state) and not fenced.intersection(_members(proposal)):
                actions.append(ReplicaAction("late copy", world.agreed.state.leader, number))
        return actions

    def _of(self, world: ReplicaWorld, broker: BrokerId) -> list[ReplicaAction]:
        copy, agreed, budget = world.copies[broker - 1], world.agreed, world.budget
        kinds: list[ReplicaAction] = []
        if not copy.is_up:
            kinds.append(ReplicaAction("return", broker))
            if broker not in agreed.fenced:
                kinds.append(ReplicaAction("fence", broker))
            return kinds
        state = copy.known.state
        leads = state.leader == broker
        if copy.flushed < len(copy.log):
            kinds.append(ReplicaAction("flush", broker))
        if copy.known != agreed:
            kinds.append(ReplicaAction("learn", broker))
        if leads and budget.writes and _has_enough(state):
            kinds.append(ReplicaAction("write", broker))
        if leads and budget.shrinks and copy.pending is None and len(state.in_sync_replicas) > 1:
            kinds.append(ReplicaAction("shrink", broker))
        if copy.pending is not None and _is_current(copy.pending, agreed.state):
            kinds.append(ReplicaAction("alter", broker))
        if not leads and copy.heard is None and copy.flushed == len(copy.log) and self._can_ask(world, broker):
            kinds.append(ReplicaAction("fetch", broker))
        if copy.heard is not None:
            kinds.append(ReplicaAction("hear", broker))
        if broker in agreed.fenced:
            kinds.append(ReplicaAction("unfence", broker))
        elif budget.alarms:
            kinds.append(ReplicaAction("false alarm", broker))
        if budget.crashes:
            kinds += [ReplicaAction("crash", broker, keeps) for keeps in {0, len(copy.log) - copy.flushed}]
        return kinds

    def _can_ask(self, world: ReplicaWorld, broker: BrokerId) -> bool:
        copy = world.copies[broker - 1]
        leader = copy.known.state.leader
        if leader == NO_LEADER:
            return False
        other = world.copies[leader - 1]
        return other.is_up and _leads(other, leader) and other.known.state.leader_epoch == copy.known.state.leader_epoch

    # Events

    def take(self, world: ReplicaWorld, action: ReplicaAction) -> ReplicaWorld:
        broker = action.broker
        copy = world.copies[broker - 1]
        match action.kind:
            case "write":
                value = world.budget.writes
                written = copy._replace(log=(*copy.log, (copy.known.state.leader_epoch, value)))
                after = _put(world, broker, written)._replace(budget=world.budget._replace(writes=value - 1))
            case "flush":
                after = _put(world, broker, _marked(copy._replace(flushed=len(copy.log)), broker))
            case "fetch":
                after = self._fetch(world, broker)
            case "hear":
                after = self._hear(world, broker)
            case "learn":
                after = _put(world, broker, self._learned(world, copy, broker))
            case "shrink":
                after = self._shrink(world, broker)
            case "alter":
                after = self._alter(world, broker)
            case "late copy":
                self.sometimes.add("a late copy is carried out")
                after = _agree(world, _with_in_sync(world.agreed, _members(world.late[action.detail])))
            case "crash":
                log = copy.log[: copy.flushed + action.detail]
                down = BrokerCopy(copy.known, is_up=False, log=log, flushed=len(log))
                after = _put(world, broker, down)
                after = after._replace(budget=world.budget._replace(crashes=world.budget.crashes - 1))
            case "return":
                # Its registration ends its leaderships, even if its absence was not noticed.
                after = registered(world, broker)
                back = self._learned(
                    after, BrokerCopy(copy.known, log=copy.log, flushed=copy.flushed), broker, anew=True
                )
                after = _put(after, broker, back)
            case "fence" | "false alarm":
                after = _fenced(world, broker)
                if action.kind == "false alarm":
                    after = after._replace(budget=world.budget._replace(alarms=world.budget.alarms - 1))
            case _:
                after = _unfenced(world, broker)
        return self._checked(world, after)

    def _fetch(self, world: ReplicaWorld, broker: BrokerId) -> ReplicaWorld:
        follower = world.copies[broker - 1]
        leader_id = follower.known.state.leader
        leader = world.copies[leader_id - 1]
        offset, epoch = len(follower.log), follower.known.state.leader_epoch
        if offset:
            last_epoch = follower.log[-1][0]
            end = _epochs(leader, leader_id).end_offset_for(last_epoch, log_end_offset=len(leader.log))
            if end.epoch != last_epoch or end.offset < offset:
                self.sometimes.add("a log diverges")
                return _put(world, broker, follower._replace(heard=Heard(epoch, offset, 0, (), end)))
        leadership = _leadership(leader, leader_id)
        horizon = _horizon(leader)
        fetch = FollowerFetch(offset, may_join=broker not in leader.known.fenced)
        if leadership.take_fetch(broker, fetch, horizon):
            leadership.propose(horizon)
        fetched = dict(leader.fetched) | {broker: offset}
        leader = leader._replace(fetched=tuple(sorted(fetched.items())), pending=leadership.pending)
        leader = _marked(leader, leader_id)
        after = _put(world, leader_id, leader)
        entries = leader.log[offset:]
        if entries or leader.high_watermark != follower.leaders_mark:
            heard = Heard(epoch, offset, leader.high_watermark, entries)
            after = _put(after, broker, follower._replace(heard=heard))
        return after

    def _hear(self, world: ReplicaWorld, broker: BrokerId) -> ReplicaWorld:
        copy = world.copies[broker - 1]
        heard = copy.heard
        assert heard is not None
        copy = copy._replace(heard=None)
        state = copy.known.state
        if heard.leader_epoch != state.leader_epoch or state.leader == broker or heard.offset != len(copy.log):
            self.sometimes.add("an answer comes too late")
            return _put(world, broker, copy)
        if heard.diverging is not None:
            offset = cut_offset(_epochs(copy, broker), len(copy.log), heard.diverging)
            assert offset >= copy.high_watermark, f"broker {broker} is cut at {offset} below {copy.high_watermark}"
            copy = copy._replace(log=copy.log[:offset], flushed=min(copy.flushed, offset))
        else:
            copy = copy._replace(log=copy.log + heard.entries, leaders_mark=heard.high_watermark)
        return _put(world, broker, _marked(copy, broker))

    def _learned(self, world: ReplicaWorld, copy: BrokerCopy, broker: BrokerId, *, anew: bool = False) -> BrokerCopy:
        before, agreed = copy.known.state, world.agreed
        copy = copy._replace(known=agreed)
        if anew or before.leader_epoch != agreed.state.leader_epoch:
            copy = copy._replace(led_from=len(copy.log), fetched=(), pending=None, doubted=(), leaders_mark=0)
            if agreed.state.leader == broker:
                self.sometimes.add("a new leader")
        elif agreed.state.partition_epoch > before.partition_epoch:
            copy = copy._replace(pending=None, doubted=())
        return _marked(copy, broker)

    def _shrink(self, world: ReplicaWorld, broker: BrokerId) -> ReplicaWorld:
        """Let the leader find that some replicas have not been caught up for too long."""
        copy = world.copies[broker - 1]
        leadership = _leadership(copy, broker)
        leadership.propose(_horizon(copy)._replace(now_ms=1))
        after = _put(world, broker, copy._replace(pending=leadership.pending))
        return after._replace(budget=world.budget._replace(shrinks=world.budget.shrinks - 1))

    def _alter(self, world: ReplicaWorld, broker: BrokerId) -> ReplicaWorld:
        proposal = world.copies[broker - 1].pending
        assert proposal is not None
        members = _members(proposal)
        if members == world.agreed.state.in_sync_replicas:
            self.sometimes.add("late copies are ruled out")
            state = world.agreed.state
            return _agree(world, world.agreed._replace(state=replace(state, partition_epoch=state.partition_epoch + 1)))
        if world.agreed.fenced.intersection(members):
            return self._refuse(world, broker, proposal)
        grows = len(members) > len(world.agreed.state.in_sync_replicas)
        self.sometimes.add("a replica joins" if grows else "a replica leaves")
        return _agree(world, _with_in_sync(world.agreed, members))

    def _refuse(self, world: ReplicaWorld, broker: BrokerId, proposal: InSyncProposal) -> ReplicaWorld:
        self.sometimes.add("a member is ineligible")
        copy = world.copies[broker - 1]
        leadership = _leadership(copy, broker)
        refusal = KafkaError(ErrorCode.INELIGIBLE_REPLICA)
        if leadership.on_response(proposal, refusal) is AfterAnswer.PROPOSE_ANEW:
            leadership.propose(_horizon(copy))
        copy = copy._replace(pending=leadership.pending, doubted=tuple(sorted(leadership.doubted)))
        if world.budget.copies:
            budget = world.budget._replace(copies=world.budget.copies - 1)
            world = world._replace(late=(*world.late, proposal), budget=budget)
        return _put(world, broker, _marked(copy, broker))

    # Laws

    def _checked(self, before: ReplicaWorld, world: ReplicaWorld) -> ReplicaWorld:
        newest = world.agreed.state.leader_epoch
        committed = world.committed
        for broker, copy in zip(IDS, world.copies, strict=True):
            if copy.is_up and _leads(copy, broker) and copy.high_watermark > len(committed):
                assert copy.log[: len(committed)] == committed, f"broker {broker} commits something else"
                committed = copy.log[: copy.high_watermark]
        world = world._replace(committed=committed)
        for broker, copy in zip(IDS, world.copies, strict=True):
            if copy.is_up:
                mark = copy.high_watermark
                assert copy.log[:mark] == committed[:mark], f"broker {broker} has something else below {mark}"
                assert mark <= copy.flushed, f"broker {broker} may lose what lies below its high watermark {mark}"
                is_led = _leads(copy, broker) and copy.known.state.leader_epoch == newest
                assert not is_led or copy.log[: len(committed)] == committed, f"leader {broker} lacks {committed}"
        state = world.agreed.state
        for broker in {*state.in_sync_replicas, *state.eligible_leader_replicas}:
            copy = world.copies[broker - 1]
            durable = copy.log[: copy.flushed]
            assert durable[: len(committed)] == committed, f"broker {broker} may lead, and lacks {committed}"
        if len(committed) > len(before.committed):
            self.sometimes.add(f"{len(committed)} committed")
        if state.eligible_leader_replicas:
            self.sometimes.add("an eligible leader")
        return world


def _leads(copy: BrokerCopy, broker: BrokerId) -> bool:
    return copy.known.state.leader == broker


def _has_enough(state: PartitionState) -> bool:
    return has_enough_in_sync(in_sync=state.in_sync_replicas, replicas=state.replicas, min_insync_replicas=MIN_IN_SYNC)


def _is_current(proposal: InSyncProposal, state: PartitionState) -> bool:
    return (proposal.leader_epoch, proposal.partition_epoch) == (state.leader_epoch, state.partition_epoch)


def _members(proposal: InSyncProposal) -> tuple[BrokerId, ...]:
    return tuple(member for member, _ in proposal.members)


def _put(world: ReplicaWorld, broker: BrokerId, copy: BrokerCopy) -> ReplicaWorld:
    copies = world.copies
    return world._replace(copies=(*copies[: broker - 1], copy, *copies[broker:]))


def _epochs(copy: BrokerCopy, broker: BrokerId) -> EpochCache:
    cache = EpochCache()
    for offset, (epoch, _) in enumerate(copy.log):
        cache.assign(epoch, offset)
    if _leads(copy, broker):
        cache.assign(copy.known.state.leader_epoch, copy.led_from)
    return cache


def _leadership(copy: BrokerCopy, broker: BrokerId) -> Leadership:
    """The product's `Leadership` of this leader, made from the state of this world."""
    made = Leadership(copy.known.state, own_id=broker, now_ms=0)
    for replica, offset in copy.fetched:
        progress = made.replicas[replica] = ReplicaProgress(caught_up_ms=0)
        progress.end_offset = offset
        progress.may_join = replica not in copy.known.fenced
    made.resume(copy.pending, frozenset(copy.doubted))
    return made


def _horizon(copy: BrokerCopy) -> Horizon:
    return Horizon(copy.high_watermark, copy.led_from, len(copy.log), now_ms=0, lag_ms=0)


def _marked(copy: BrokerCopy, broker: BrokerId) -> BrokerCopy:
    """The copy with its high watermark as high as allowed."""
    if not _leads(copy, broker):
        return copy._replace(high_watermark=max(copy.high_watermark, min(copy.leaders_mark, copy.flushed)))
    safe = _leadership(copy, broker).safe_end_offset(copy.flushed, log_end_offset=len(copy.log), now_ms=0, lag_ms=0)
    if not _has_enough(copy.known.state):
        return copy
    return copy._replace(high_watermark=max(copy.high_watermark, safe))


def _with_in_sync(agreed: Agreed, in_sync: tuple[BrokerId, ...]) -> Agreed:
    state = rules_26.with_in_sync(
        agreed.state,
        in_sync,
        min_in_sync=MIN_IN_SYNC,
        may_lead=lambda broker: broker not in agreed.fenced,
        unclean_election=False,
    )
    return agreed._replace(state=state)


def _agree(world: ReplicaWorld, agreed: Agreed) -> ReplicaWorld:
    return world._replace(agreed=agreed)


def _fenced(world: ReplicaWorld, broker: BrokerId) -> ReplicaWorld:
    agreed = world.agreed._replace(fenced=world.agreed.fenced | {broker})
    state = agreed.state
    if broker in state.in_sync_replicas or broker == state.leader:
        agreed = _with_in_sync(agreed, tuple(replica for replica in state.in_sync_replicas if replica != broker))
    return _agree(world, agreed)


def registered(world: ReplicaWorld, broker: BrokerId) -> ReplicaWorld:
    """Register a new process of this broker. The broker is fenced until it asks to be unfenced."""
    return _fenced(world, broker)


def _unfenced(world: ReplicaWorld, broker: BrokerId) -> ReplicaWorld:
    agreed = world.agreed._replace(fenced=world.agreed.fenced - {broker})
    if agreed.state.leader == NO_LEADER:
        elected = _with_in_sync(agreed, agreed.state.in_sync_replicas)
        agreed = elected if elected.state.leader != NO_LEADER else agreed
    return _agree(world, agreed)


def _plain(part: object) -> object:
    """Sorts the sets in a part of a world."""
    if isinstance(part, BrokerCopy):
        return (_plain(part.known), *part[1:])
    if not isinstance(part, Agreed):
        return part
    state = part.state
    return (
        state.leader,
        state.leader_epoch,
        state.partition_epoch,
        state.in_sync_replicas,
        state.eligible_leader_replicas,
        state.last_known_leaders,
        state.is_recovering,
        sorted(part.fenced),
    )
