"""The works of transactional producers: transfers over several partitions, and copies with the offsets of a group.

Each transactional id has one work, and instances that do the work, one after the other or several at once. Every
instance except the newest is a zombie, without knowing it. Sinks, whose members are decided together:
`transactions.sink`.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, Final, Protocol

from simulation.transactions.book import ClientTransaction, GroupOffset
from simulation.transactions.brokers import ORDERS, TransactionBrokers
from simulation.transactions.client import AbortNeeded, GaveUp, ScriptedClient
from simulation.transactions.laws import COPIES
from simulation.transactions.reader import Values, fetch
from simulation.transactions.script import Conversation, LeaderRequest, Script, insist
from tailrace.model.errors import ErrorCode
from tailrace.model.partitions import GROUP_OFFSETS_TOPIC, TopicPartition
from tailrace.protocol.messages.offsets import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
    OffsetFetchResponse,
)

_MOST_COPIED: Final = 4
"""The most records that one transaction copies."""


class Work(Protocol):
    """The work of one instance. Its methods are scripts; scripts that write raise AbortNeeded and GaveUp."""

    def resume(self) -> Script[None]:
        """Set the position behind the last committed transaction: at the start, and after an abort."""
        ...

    def prepare(self) -> Script[bool]:
        """Whether there is something to do in a transaction now."""
        ...

    def carry_out(self, transaction: ClientTransaction) -> Script[None]:
        """Do the work."""
        ...


class Transfer:
    """Writes to two or three partitions of orders, once or twice to each partition."""

    def __init__(self, client: ScriptedClient) -> None:
        self._client = client

    def resume(self) -> Script[None]:
        """A transfer has no progress to resume."""
        yield from ()

    def prepare(self) -> Script[bool]:
        """A transfer always has something to do."""
        yield from ()
        return True

    def carry_out(self, transaction: ClientTransaction) -> Script[None]:
        """Write, with pauses."""
        client, world = self._client, self._client.cluster.world
        count = client.cluster.plan.partitions
        first = world.between(0, count - 1, "first", client.instance)
        size = world.between(2, count, "width", client.instance)
        for step in range(world.between(size, size + 2, "writes", client.instance)):
            name = TopicPartition(ORDERS, (first + step % size) % count)
            yield from client.write(transaction, name, f"{step}.0", *((f"{step}.1",) if step % 2 else ()))
            yield from client.pause(client.cluster.plan.longest_pause_ms, "pause")


class Copy:
    """Consumes one partition of orders, and produces each record once to copies."""

    def __init__(self, source: TopicPartition, group_id: str, client: ScriptedClient) -> None:
        self._client = client
        self._source = source
        self._group_id = group_id
        self._offset = 0
        self._input: Values = []

    def resume(self) -> Script[None]:
        """Set the position to the group's offset."""
        self._input = []
        told = yield from stable_offset(self._client.cluster, self._group_id, self._source)
        self._offset = max(told, 0)

    def prepare(self) -> Script[bool]:
        """Read on if no input is left; returns whether there is input."""
        if not self._input:
            self._input, self._offset = yield from fetch(self._client.cluster, self._source, self._offset)
        return bool(self._input)

    def carry_out(self, transaction: ClientTransaction) -> Script[None]:
        """Copy the next records, and set the group's offset behind these records."""
        client, plan = self._client, self._client.cluster.plan
        size = client.cluster.world.between(1, _MOST_COPIED, "copied", client.instance)
        copied, self._input = self._input[:size], self._input[size:]
        for offset, _ in copied:
            target = TopicPartition(COPIES, offset % plan.partitions)
            yield from client.write(transaction, target, f"{self._source.partition}:{offset}")
            yield from client.pause(plan.longest_pause_ms, "pause")
        after = copied[-1][0] + 1
        yield from client.set_offset(transaction, GroupOffset(self._group_id, self._source, after))


def stable_offset(cluster: TransactionBrokers, group_id: str, name: TopicPartition) -> Script[int]:
    """The offset of a group, -1: no offset. Waits until no transaction has a pending offset."""
    topics = (OffsetFetchRequestTopics(name=name.topic, partition_indexes=(name.partition,)),)
    request = OffsetFetchRequest(
        groups=(OffsetFetchRequestGroup(group_id=group_id, topics=topics),), require_stable=True
    )

    def leaves(response: OffsetFetchResponse) -> None:
        if not _offset_code(response):
            cluster.laws.offset_leaves((group_id, name), _offset(response))

    asked = LeaderRequest(cluster.partition_for(GROUP_OFFSETS_TOPIC, group_id), request, 9, on_leave=leaves)
    code, response = yield from insist(asked, _offset_code)
    assert code is ErrorCode.NONE, code
    return _offset(response)


def _offset(response: OffsetFetchResponse) -> int:
    return int(response.groups[0].topics[0].partitions[0].committed_offset)


def _offset_code(response: Any) -> int:
    group = response.groups[0]
    return int(group.error_code or group.topics[0].partitions[0].error_code)


class Instances(ABC):
    """The processes that do one work, one after the other or several at once."""

    def __init__(self, cluster: TransactionBrokers, name: str) -> None:
        self.name = name
        self.committed = 0
        """The number of transactions, or batches, whose commit was answered."""
        self.instances: list[Conversation] = []
        """The instances that live."""
        self._cluster = cluster
        self._started = 0

    @property
    def processes(self) -> list[Conversation]:
        """The processes that live and can be killed."""
        return self.instances

    def start(self) -> None:
        """Start another instance, whatever the others do."""
        cluster, name = self._cluster, f"{self.name}/{self._started}"
        self._started += 1
        cluster.world.sometimes["several instances"] += bool(self.instances)
        conversation = Conversation(cluster, name, self._script(name), lambda: self._gone(conversation))
        self.instances.append(conversation)
        conversation.start()

    @abstractmethod
    def _script(self, instance: str) -> Script[None]:
        """The work of the instance with this name."""

    def kill(self, conversation: Conversation) -> None:
        """Kill a process that works for a transactional id."""
        conversation.kill()
        self._gone(conversation)

    def _gone(self, conversation: Conversation) -> None:
        self.instances.remove(conversation)
        if not self.instances:
            self._cluster.world.after(self._cluster.world.between(1, 1_000, "restart", self.name), self._start_if_none)

    def _start_if_none(self) -> None:
        if not self.instances and self._cluster.is_working:
            self.start()


class TransactionalId(Instances):
    """A transactional id, with its instances."""

    def __init__(
        self,
        cluster: TransactionBrokers,
        name: str,
        work_of: Callable[[ScriptedClient], Work],
        *,
        generations: Sequence[int],
    ) -> None:
        """`generations`: the generations of its instances in turn."""
        super().__init__(cluster, name)
        self._work_of = work_of
        self._generations = generations

    def _script(self, instance: str) -> Script[None]:
        generation = self._generations[(self._started - 1) % len(self._generations)]
        return self._run(ScriptedClient(self._cluster, self.name, instance, generation=generation))

    def _run(self, client: ScriptedClient) -> Script[None]:
        cluster, work = self._cluster, self._work_of(client)
        try:
            yield from client.initialize()
            yield from work.resume()
            while cluster.is_working:
                yield from client.pause(cluster.plan.longest_pause_ms, "gap")
                if (yield from work.prepare()):
                    yield from self._transaction(client, work)
        except GaveUp:
            cluster.world.note(f"{client.instance} gives up")

    def _transaction(self, client: ScriptedClient, work: Work) -> Script[None]:
        transaction = client.begin()
        try:
            yield from work.carry_out(transaction)
            is_commit = client.cluster.world.chance(0.75, "commit", client.instance)
        except AbortNeeded:
            is_commit = False
        yield from client.end(transaction, is_commit=is_commit)
        if is_commit:
            self.committed += 1
        else:
            yield from work.resume()
