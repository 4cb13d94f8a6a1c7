"""A sink as a small world, for `small_scope`: two runs, two tasks, attempts of these tasks, and a coordinator that
crashes.

Tasks write members and report these members; the driver of a run commits a batch with one attempt of each task, and
goes on to the next batch when the commit is acknowledged. The second run may begin at any moment, while the first run
goes on. It begins with the first batch for which the first run has no acknowledgement. Requests come late, and twice.
Each decision is replicated by itself, as a whole like its record batch, or lost when another coordinator takes over
from the bytes of the log. The decisions, and the encoding and decoding of records, are the product's code. All tasks
write to one partition, which follows KIP-890 and KIP-1228.

Beside the product there is the history of each member: see the laws in `_check` and at the places that raise a law.
"""

from collections.abc import Callable, Iterable, Sequence

from simulation.harness.breach import Breach
from simulation.harness.small_scope import Fingerprints
from simulation.sinks.world import (
    LATE_MS,
    PLACE,
    RUNS,
    SINK,
    TASKS,
    TIMEOUT_MS,
    Commit,
    KnownMember,
    Marker,
    SinkAction,
    SinkBudget,
    SinkProducer,
    SinkWorld,
    Staged,
    decoded,
    decoded_pair,
    decoded_state,
    machine_of,
    member_of,
    members_of,
    name_of,
    own_producer_id,
    producer_of,
    spent,
    with_producer,
)
from tailrace.coordinators.transactions.commands import (
    AbortTimedOut,
    AddPartitions,
    Command,
    CommitSink,
    CompleteTransaction,
    InitializeProducer,
    NeedsProducerId,
    SinkMemberIdentity,
    SweepSink,
)
from tailrace.coordinators.transactions.records import CoordinatorRecord, SinkRecord, encode_record
from tailrace.coordinators.transactions.transaction import Transaction, TransactionState
from tailrace.model.errors import ErrorCode, KafkaError
from tailrace.model.sinks import SinkMember, find_member
from tailrace.server.transactions.sink_memory import SinkProducers


class SinkScope:
    """A `harness.small_scope.Model`."""

    def __init__(self) -> None:
        self.sometimes: set[str] = set()
        self._fingerprints = Fingerprints(lambda part: sorted(part) if isinstance(part, frozenset) else part)

    def start(self, budget: SinkBudget) -> SinkWorld:
        """The first run begins, with batch 0."""
        return SinkWorld(budget)

    def name(self, action: SinkAction) -> str:
        member = "" if action.member is None else f" {action.member.transactional_id.partition('/')[2]}"
        return f"{action.kind}{member} {action.which}"

    def fingerprint(self, world: SinkWorld) -> int:
        return self._fingerprints.of(world)

    # Events

    def actions(self, world: SinkWorld) -> Sequence[SinkAction]:
        found = [*self._of_tasks(world), *self._of_drivers(world), *self._of_coordinator(world)]
        if world.staged:
            found.append(SinkAction("replicate"))
            if world.budget.failovers:
                found.append(SinkAction("fail over"))
        elif world.budget.failovers and (world.waiting or world.kept or world.marked):
            found.append(SinkAction("fail over"))
        if world.budget.late_markers:
            found += (SinkAction("late marker", which=index) for index in range(len(world.markers)))
        return found

    def _of_tasks(self, world: SinkWorld) -> Iterable[SinkAction]:
        known = {identity.member for identity in world.identities}
        for run, next_batch in zip(RUNS, world.next_batches, strict=True):
            for batch in range(min(next_batch + 1, world.budget.batches)):
                for task in TASKS:
                    for attempt in (0, 1) if world.budget.attempts else (0,):
                        member = SinkMember(SINK, run, batch, task, attempt)
                        if member not in known and member not in world.given_up:
                            yield SinkAction("initialize", member)
        for identity in sorted(world.identities):
            if identity.member not in world.written and identity.member not in world.given_up:
                yield SinkAction("begin", identity.member)

    def _of_drivers(self, world: SinkWorld) -> Iterable[SinkAction]:
        if world.budget.second_run:
            yield SinkAction("second run")
        sent = {(commit.run, commit.batch) for commit in world.commits}
        for number, run in enumerate(RUNS):
            batch = world.next_batches[number]
            if 0 <= batch < world.budget.batches and (run, batch) not in sent and run not in world.stopped:
                yield from (
                    SinkAction("commit", which=10 * number + choice) for choice in self._choices(world, run, batch)
                )
        for index, commit in enumerate(world.commits):
            if world.budget.late_commits or not commit.is_acknowledged:
                yield SinkAction("deliver", which=index)

    @staticmethod
    def _choices(world: SinkWorld, run: str, batch: int) -> Iterable[int]:
        """The choices of one attempt for each of the two tasks, as two bits; the chosen attempts have written."""
        for choice in range(4):
            members = [SinkMember(SINK, run, batch, task, choice >> task & 1) for task in TASKS]
            if world.written.issuperset(members):
                yield choice

    def _of_coordinator(self, world: SinkWorld) -> Iterable[SinkAction]:
        machine = machine_of(world.log, world.staged)
        for name, transaction in sorted(machine.transactions.items()):
            member = find_member(name)
            if transaction.state.is_prepared:
                yield SinkAction("complete" if member in world.marked else "marker", member)
            elif transaction.state is TransactionState.ONGOING and world.budget.timeouts:
                yield SinkAction("time out", member)
        if machine.sinks.swept(SINK, 0):
            yield SinkAction("sweep")

    def take(self, world: SinkWorld, action: SinkAction) -> SinkWorld:
        taken = self._handlers()[action.kind](world, action)
        self._check(taken)
        return taken

    def _handlers(self) -> dict[str, Callable[[SinkWorld, SinkAction], SinkWorld]]:
        return {
            "initialize": self._initialize,
            "begin": self._begin,
            "second run": self._second_run,
            "commit": self._commit,
            "deliver": self._deliver,
            "marker": self._marker,
            "complete": lambda world, action: self._decided(
                world, CompleteTransaction(transactional_id=name_of(action))
            ),
            "time out": self._time_out,
            "sweep": lambda world, _: self._decided(world, SweepSink(sink_id=SINK)),
            "replicate": lambda world, _: self._replicate(world),
            "fail over": self._fail_over,
            "late marker": self._late_marker,
        }

    # Tasks

    def _initialize(self, world: SinkWorld, action: SinkAction) -> SinkWorld:
        member = member_of(action)
        if member.attempt:
            world = spent(world, "attempts")
        machine = machine_of(world.log, world.staged)
        command = InitializeProducer(transactional_id=member.transactional_id, timeout_ms=TIMEOUT_MS)
        try:
            if isinstance(machine.decide(command, 0).response, NeedsProducerId):
                world, fresh_id, fresh_epoch = self._fresh(world, member)
                command = InitializeProducer(
                    transactional_id=member.transactional_id,
                    timeout_ms=TIMEOUT_MS,
                    fresh_producer_id=fresh_id,
                    fresh_producer_epoch=fresh_epoch,
                )
            return self._soon(self._decided(world, command))
        except KafkaError as refusal:
            return self._task_refused(world, member, refusal)

    def _soon(self, world: SinkWorld) -> SinkWorld:
        """Replicate the staged record of a task at once, if `is_quick` and no other record is staged."""
        return self._replicate(world) if world.budget.is_quick and len(world.staged) == 1 else world

    def _fresh(self, world: SinkWorld, member: SinkMember) -> tuple[SinkWorld, int, int]:
        """A producer for a new member, as the host would give it."""
        producers = SinkProducers()
        for producer_id, last_epoch in world.kept:
            producers.add(SINK, producer_id, last_epoch)
        used = producers.take(SINK)
        if used is None:
            return world, own_producer_id(member), 0
        self.sometimes.add("a producer id is used again")
        return world._replace(kept=world.kept[1:]), used.producer_id, used.producer_epoch

    def _begin(self, world: SinkWorld, action: SinkAction) -> SinkWorld:
        member = member_of(action)
        identity = next(known for known in world.identities if known.member == member)
        producer = producer_of(world, identity.producer_id)
        if identity.producer_epoch < producer.epoch:
            return world._replace(given_up=world.given_up | {member})
        command = AddPartitions(
            transactional_id=member.transactional_id,
            producer_id=identity.producer_id,
            producer_epoch=identity.producer_epoch,
            partitions=PLACE,
            client_version=2,
        )
        try:
            return self._soon(self._decided(world, command))
        except KafkaError as refusal:
            return self._task_refused(world, member, refusal)

    def _task_refused(self, world: SinkWorld, member: SinkMember, refusal: KafkaError) -> SinkWorld:
        if refusal.code is ErrorCode.CONCURRENT_TRANSACTIONS:
            return world
        self.sometimes.add(f"a task is refused: {refusal.code.name}")
        return world._replace(given_up=world.given_up | {member})

    # Drivers

    @staticmethod
    def _second_run(world: SinkWorld, _: SinkAction) -> SinkWorld:
        first = world.next_batches[0]
        return spent(world, "second_run")._replace(next_batches=(first, first))

    @staticmethod
    def _commit(world: SinkWorld, action: SinkAction) -> SinkWorld:
        number, choice = divmod(action.which, 10)
        run, batch = RUNS[number], world.next_batches[number]
        members = {SinkMember(SINK, run, batch, task, choice >> task & 1) for task in TASKS}
        named = tuple(sorted(identity for identity in world.identities if identity.member in members))
        return world._replace(commits=tuple(sorted((*world.commits, Commit(run, batch, named)))))

    def _deliver(self, world: SinkWorld, action: SinkAction) -> SinkWorld:
        commit = world.commits[action.which]
        if commit.is_acknowledged:
            world = spent(world, "late_commits")
        command = CommitSink(
            sink_id=SINK,
            run=commit.run,
            batch=commit.batch,
            members=tuple(
                SinkMemberIdentity(
                    transactional_id=member.member.transactional_id,
                    producer_id=member.producer_id,
                    producer_epoch=member.producer_epoch,
                )
                for member in commit.members
            ),
        )
        key = (commit.run, commit.batch)
        try:
            decision = machine_of(world.log, world.staged).decide(command, 0)
        except KafkaError as refusal:
            if refusal.code is ErrorCode.CONCURRENT_TRANSACTIONS or commit.is_acknowledged:
                return world
            self.sometimes.add(f"a driver is refused: {refusal.code.name}")
            commits = tuple(kept for kept in world.commits if kept != commit)
            return world._replace(commits=commits, stopped=world.stopped | {commit.run})
        if decision.records:
            batch = Staged(tuple(map(encode_record, decision.records)), key)
            return world._replace(staged=(*world.staged, batch))
        self.sometimes.add("a decided batch is answered again")
        return self._answer(world._replace(waiting=world.waiting | {key}))

    # The coordinator

    def _decided(self, world: SinkWorld, command: Command, now_ms: int = 0) -> SinkWorld:
        records = machine_of(world.log, world.staged).decide(command, now_ms).records
        if not records:
            return world
        return world._replace(staged=(*world.staged, Staged(tuple(map(encode_record, records)))))

    def _time_out(self, world: SinkWorld, action: SinkAction) -> SinkWorld:
        command = AbortTimedOut(transactional_id=name_of(action))
        after = self._decided(world, command, LATE_MS)
        return world if after is world else spent(after, "timeouts")

    def _fail_over(self, world: SinkWorld, _: SinkAction) -> SinkWorld:
        if any(batch.answers for batch in world.staged):
            self.sometimes.add("a decision is lost with the coordinator")
        if any(member not in world.marked for member, known in members_of(world) if known.state.is_prepared):
            self.sometimes.add("another coordinator writes the markers")
        lost = spent(world, "failovers")
        return lost._replace(staged=(), waiting=frozenset(), kept=(), marked=frozenset())

    def _replicate(self, world: SinkWorld) -> SinkWorld:
        batch, *staged = world.staged
        before = dict(world.log)
        world = world._replace(staged=tuple(staged))
        for key, value in batch.records:
            world = self._learn(world, decoded(key, value), decoded_state(key, before.get(key)))
            if value is None:
                before.pop(key, None)
            else:
                before[key] = value
        world = self._follow(world, batch, before)
        if batch.answers is not None:
            world = world._replace(waiting=world.waiting | {batch.answers})
        return self._answer(world)

    def _learn(self, world: SinkWorld, record: CoordinatorRecord, known: Transaction | None) -> SinkWorld:
        """Note that a record of a member is replicated."""
        if isinstance(record, SinkRecord):
            return world
        member = find_member(record.transactional_id)
        assert member is not None, "only members are written"
        after = record.transaction
        if after is None:
            assert known is not None
            last = known.completed(now_ms=0) if known.state.is_prepared else known
            gone = frozenset(lost for lost in world.identities if lost.member == member and member not in world.written)
            return world._replace(
                kept=(*world.kept, (last.producer_id, last.producer_epoch)),
                identities=world.identities - gone,
                given_up=world.given_up | {lost.member for lost in gone},
            )
        if after.state is TransactionState.EMPTY:
            identity = KnownMember(member, after.producer_id, after.producer_epoch)
            return world._replace(identities=world.identities | {identity})
        if after.state is TransactionState.ONGOING:
            return self._write(world, member, after)
        return world

    @staticmethod
    def _write(world: SinkWorld, member: SinkMember, transaction: Transaction) -> SinkWorld:
        """Write the records of the task, since the partition is in the transaction."""
        producer = producer_of(world, transaction.producer_id)
        if producer.open_member not in (None, member):
            raise Breach("a producer has one transaction", f"{member} beside {producer.open_member}")
        opened = SinkProducer(transaction.producer_id, transaction.producer_epoch, member)
        return with_producer(world, opened)._replace(written=world.written | {member})

    def _follow(self, world: SinkWorld, batch: Staged, log: dict[bytes, bytes | None]) -> SinkWorld:
        """Note that the record batch is replicated: find the runs that another run has followed now, and check the runs
        that decide."""
        records = [decoded(key, value) for key, value in batch.records]
        deciding = [record for record in records if isinstance(record, SinkRecord)]
        for record in records:
            self._check_run(world, record)
        followed = world.followed
        for sink in deciding:
            assert sink.sink is not None
            before = next((entry.sink for entry in map(decoded_pair, world.log) if isinstance(entry, SinkRecord)), None)
            if before is not None and before.run != sink.sink.run:
                self.sometimes.add("a run follows another")
                followed |= {before.run}
        return world._replace(followed=followed, log=tuple(sorted(log.items())))

    @staticmethod
    def _check_run(world: SinkWorld, record: CoordinatorRecord) -> None:
        if isinstance(record, SinkRecord) or record.transaction is None:
            return
        member, state = find_member(record.transactional_id), record.transaction.state
        assert member is not None
        if member.run in world.followed and state is TransactionState.PREPARE_COMMIT:
            raise Breach("a followed run commits nothing", f"{member}")
        sink = next((entry.sink for entry in map(decoded_pair, world.log) if isinstance(entry, SinkRecord)), None)
        is_decided = sink is not None and member.batch <= sink.last_batch
        if state in (TransactionState.EMPTY, TransactionState.ONGOING) and is_decided:
            raise Breach("a decided batch begins nothing", f"{member} is {state.label}")

    def _answer(self, world: SinkWorld) -> SinkWorld:
        """Acknowledge the commits whose members have their markers."""
        sinks = machine_of(world.log, world.staged).sinks
        for key in sorted(world.waiting):
            run, batch = key
            if not sinks.is_complete(SINK, batch):
                continue
            tasks = sorted(member.task for member in world.committed if member.batch == batch)
            if tasks != list(TASKS):
                raise Breach("an acknowledged batch is read whole", f"batch {batch} has tasks {tasks}")
            number = RUNS.index(run)
            next_batches = list(world.next_batches)
            next_batches[number] = max(next_batches[number], batch + 1)
            commits = tuple(
                commit._replace(is_acknowledged=True) if (commit.run, commit.batch) == key else commit
                for commit in world.commits
            )
            world = world._replace(
                waiting=world.waiting - {key}, commits=commits, next_batches=(next_batches[0], next_batches[1])
            )
            self.sometimes.add(f"batch {batch} is acknowledged to {run}")
        return world

    # Markers

    def _marker(self, world: SinkWorld, action: SinkAction) -> SinkWorld:
        member = member_of(action)
        sent = machine_of(world.log, world.staged).markers(member.transactional_id)
        assert sent is not None
        marker = Marker(member, sent.producer_id, sent.producer_epoch, sent.is_commit)
        markers = world.markers | {marker} if world.budget.late_markers else world.markers
        return self._end(world._replace(markers=markers, marked=world.marked | {member}), marker)

    def _late_marker(self, world: SinkWorld, action: SinkAction) -> SinkWorld:
        marker = sorted(world.markers)[action.which]
        return self._end(spent(world, "late_markers"), marker)

    def _end(self, world: SinkWorld, marker: Marker) -> SinkWorld:
        """Write a marker as a leader of KIP-1228: the marker's epoch must be above the open transaction's epoch, a late
        marker is refused."""
        producer = producer_of(world, marker.producer_id)
        if marker.producer_epoch < producer.epoch or (
            producer.open_member is not None and marker.producer_epoch == producer.epoch
        ):
            self.sometimes.add("a late marker is refused")
            return world
        ended = producer.open_member
        world = with_producer(world, SinkProducer(marker.producer_id, marker.producer_epoch, None))
        if ended is None:
            return world
        if ended != marker.member:
            raise Breach("a marker ends its own transaction", f"that of {marker.member} has ended {ended}")
        if marker.is_commit:
            return world._replace(committed=world.committed | {ended})
        return world._replace(aborted=world.aborted | {ended})

    # Laws

    @staticmethod
    def _check(world: SinkWorld) -> None:
        """1. In each batch all tasks are committed once, or no task is ever committed.
        2. A member that was aborted is not committed.
        3. A transaction of a decided batch does not stay open.
        """
        decided = {member for member, known in members_of(world) if known.state is TransactionState.PREPARE_COMMIT}
        decided |= world.committed
        for batch in {member.batch for member in decided}:
            tasks = sorted(member.task for member in decided if member.batch == batch)
            if len(set(tasks)) < len(tasks):
                raise Breach("a batch is committed once", f"batch {batch} has tasks {tasks}")
            if tasks != list(TASKS):
                raise Breach("a batch is committed whole", f"batch {batch} has tasks {tasks}")
        if decided & world.aborted:
            raise Breach("an aborted member is not committed", f"{sorted(decided & world.aborted)}")
        machine = machine_of(world.log, world.staged)
        if not world.staged and not machine.sinks.swept(SINK, 0):
            last_batch = machine.sinks.last_batch(SINK)
            for member, known in members_of(world):
                if member.batch <= last_batch and known.state is TransactionState.ONGOING:
                    raise Breach("what can never commit is ended", f"{member}")
