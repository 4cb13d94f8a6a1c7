"""A sink with its writer: tasks write the rows of a batch, and a driver commits the batch by a single request.

As with Spark: tasks and driver are processes of their own, which die or stand still on their own. The driver tries a
failed task again, and starts a second attempt beside a slow attempt. It begins the next batch when this batch is
acknowledged, and notes its progress later. A new run begins behind that note, however far the last run has come, and
spreads the rows of a batch differently. A driver that lives on beside the new run is a zombie, and so is a task whose
driver is dead.
"""

from contextlib import suppress
from typing import Final, NamedTuple

from simulation.transactions.book import ClientTransaction, Identity
from simulation.transactions.brokers import ORDERS, TransactionBrokers
from simulation.transactions.client import AbortNeeded, GaveUp, ScriptedClient
from simulation.transactions.script import Conversation, LeaderRequest, Pause, Script, insist
from simulation.transactions.work import Instances
from tailrace.model.errors import ErrorCode
from tailrace.model.partitions import TRANSACTION_STATE_TOPIC, TopicPartition
from tailrace.model.sinks import SinkMember, sink_key
from tailrace.protocol.messages.sinks import CommitSinkRequest, CommitSinkResponse, MemberToCommit

_MOST_ROWS: Final = 5
_MOST_TASKS: Final = 3
_MOST_ATTEMPTS: Final = 4
"""The most attempts of a task in one run of its batch."""
_PATIENCE_MS: Final = 300
"""The longest wait before a second attempt may begin beside the first attempt."""
_LOOK_MS: Final = 20
_COMMIT_TIMEOUT_MS: Final = 500


class Failed(Exception):
    """A task has failed too often."""


class WrittenAttempt(NamedTuple):
    """An attempt that has written its rows and left its transaction open, in its driver's view."""

    transaction: ClientTransaction
    identity: Identity


class Task:
    """The rows of a task, and the state of its attempts."""

    def __init__(self, number: int, rows: list[int]) -> None:
        self.number = number
        self.rows = rows
        self.attempts: list[Conversation] = []
        self.written: list[WrittenAttempt] = []
        self.is_decided = False
        """Whether a coordinator says that the batch was decided before."""

    @property
    def is_done(self) -> bool:
        return bool(self.written) or self.is_decided


class Sink(Instances):
    """The writer of a sink: its instances are drivers."""

    def __init__(self, cluster: TransactionBrokers, name: str) -> None:
        super().__init__(cluster, name)
        self._tasks: list[Conversation] = []
        self._progress = 0
        """The next batch, by the last note of the progress."""
        self._attempts = 0

    @property
    def processes(self) -> list[Conversation]:
        """The processes that live and can be killed, tasks included."""
        return [*self.instances, *self._tasks]

    def _gone(self, conversation: Conversation) -> None:
        if conversation in self._tasks:
            self._tasks.remove(conversation)
        else:
            super()._gone(conversation)

    def _script(self, instance: str) -> Script[None]:
        return self._drive(instance, instance.replace("/", "-run-"))

    # The driver

    def _drive(self, driver: str, run: str) -> Script[None]:
        batch = self._progress
        try:
            while self._cluster.is_working:
                yield from self._pause(driver, "gap")
                tasks = self._plan(run, batch)
                yield from self._have_written(driver, run, batch, tasks)
                yield from self._commit(run, batch, tasks)
                self.committed += 1
                yield from self._pause(driver, "note")
                batch += 1
                self._progress = max(self._progress, batch)
        except (Failed, GaveUp) as error:
            self._cluster.world.note(f"{driver} ends in batch {batch}: {error!r}")

    def _pause(self, process: str, what: str) -> Script[None]:
        yield Pause(self._cluster.world.between(1, self._cluster.plan.longest_pause_ms, what, process))

    def _plan(self, run: str, batch: int) -> list[Task]:
        """Spread the rows of a batch over tasks."""
        world, rows = self._cluster.world, self._cluster.book.rows
        if (self.name, batch) not in rows:
            rows[self.name, batch] = world.between(2, _MOST_ROWS, "rows", self.name)
        tasks = [Task(number, []) for number in range(world.between(1, _MOST_TASKS, "tasks", run))]
        for row in range(rows[self.name, batch]):
            world.choice(tasks, "task", run).rows.append(row)
        return [task for task in tasks if task.rows]

    def _have_written(self, driver: str, run: str, batch: int, tasks: list[Task]) -> Script[None]:
        """Wait until each task is done. Raises Failed."""
        world = self._cluster.world
        begun_ms = world.now_ms
        patience_ms = world.between(1, 4 * _PATIENCE_MS, "patience", driver)  # beyond the longest: no second attempts
        is_patient = patience_ms > _PATIENCE_MS
        while not all(task.is_done for task in tasks):
            for task in tasks:
                is_late = not is_patient and world.now_ms - begun_ms > patience_ms and len(task.attempts) == 1
                if not task.is_done and (is_late or all(attempt.is_over for attempt in task.attempts)):
                    self._try(run, batch, task)
            yield Pause(_LOOK_MS)

    def _try(self, run: str, batch: int, task: Task) -> None:
        """Begin another attempt. Raises Failed."""
        if len(task.attempts) == _MOST_ATTEMPTS:
            raise Failed
        self._cluster.world.sometimes["an attempt of a task again"] += bool(task.attempts)
        self._attempts += 1
        member = SinkMember(self.name, run, batch, task.number, self._attempts)
        name = f"{run}/{batch}/{task.number}.{self._attempts}"
        conversation = Conversation(
            self._cluster, name, self._attempt(name, member, task), lambda: self._gone(conversation)
        )
        task.attempts.append(conversation)
        self._tasks.append(conversation)
        conversation.start()

    def _commit(self, run: str, batch: int, tasks: list[Task]) -> Script[None]:
        """Send CommitSink until an answer comes. Raises GaveUp."""
        cluster = self._cluster
        chosen = [cluster.world.choice(task.written, "attempt", run) for task in tasks if task.written]
        for each in chosen:
            each.transaction.wants_commit = True
        request = CommitSinkRequest(
            sink_id=self.name,
            run=run,
            batch=batch,
            timeout_ms=_COMMIT_TIMEOUT_MS,
            members=tuple(
                MemberToCommit(
                    transactional_id=each.transaction.transactional_id,
                    producer_id=each.identity.producer_id,
                    producer_epoch=each.identity.producer_epoch,
                )
                for each in chosen
            ),
        )
        name = cluster.partition_for(TRANSACTION_STATE_TOPIC, sink_key(self.name))
        asked = LeaderRequest(name, request, 0, on_leave=lambda answer: cluster.laws.commit_leaves(request, answer))
        code, answer = yield from insist(asked, _code)
        if code is not ErrorCode.NONE:
            cluster.world.sometimes[f"CommitSink ends a driver: {code.name}"] += 1
            raise GaveUp(code)
        cluster.world.sometimes["a batch is committed already"] += answer.is_repetition
        if not answer.is_repetition:
            for each in chosen:
                each.transaction.answered = True

    # Tasks

    def _attempt(self, name: str, member: SinkMember, task: Task) -> Script[None]:
        cluster = self._cluster
        client = ScriptedClient(cluster, member.transactional_id, name, generation=2)
        try:
            yield from client.initialize()
        except GaveUp as refusal:
            task.is_decided |= refusal.code is ErrorCode.DUPLICATE_SEQUENCE_NUMBER
            return
        transaction = client.begin()
        try:
            yield from self._write(client, transaction, task.rows)
            task.written.append(WrittenAttempt(transaction, transaction.identity))
        except GaveUp:
            pass
        except AbortNeeded:
            if cluster.world.chance(0.5, "abort", name):  # else its end is left to others
                yield from self._abort(client, transaction)

    def _write(self, client: ScriptedClient, transaction: ClientTransaction, rows: list[int]) -> Script[None]:
        """Write a record batch to each partition that has rows."""
        count = self._cluster.plan.partitions
        first = self._cluster.world.between(0, count - 1, "first", client.instance)
        for partition in range(count):
            texts = [str(row) for row in rows if (first + row) % count == partition]
            if texts:
                yield from client.write(transaction, TopicPartition(ORDERS, partition), *texts)
                yield from client.pause(self._cluster.plan.longest_pause_ms, "pause")

    def _abort(self, client: ScriptedClient, transaction: ClientTransaction) -> Script[None]:
        with suppress(GaveUp):  # the transaction has ended
            yield from client.end(transaction, is_commit=False)


def _code(response: CommitSinkResponse) -> int:
    return int(response.error_code)
