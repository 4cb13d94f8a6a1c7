"""Whole conversations of transactional producers with their coordinator, the leaders and a group, drawn by lot.

A conversation has a transactional id, partitions and a group of its own. Its producer is of one generation: up to
EndTxn v4 the producer adds partitions itself, from v5 on its writes do (KIP-890). After each end the script waits until
all markers are written: requests before that are the subject of `unfinished_ends`.
"""

from collections.abc import Callable
from random import Random
from typing import Any, NamedTuple

from interop.differential.catalogue.groups.group_offsets import fetch_offsets
from interop.differential.catalogue.preparation import batch, created, produce
from interop.differential.catalogue.records.fetch import fetch
from interop.differential.catalogue.transactions.transactional_requests import (
    Identity,
    adds,
    adds_offsets,
    commits,
    ends,
    initializes,
    is_added,
    is_complete,
    is_coordinated,
    is_found,
    is_written,
)
from interop.differential.script import Answers, Ask, Build, Script, ask
from tailrace.protocol.messages.groups import FindCoordinatorRequest
from tailrace.protocol.messages.transactions import DescribeTransactionsRequest, InitProducerIdRequest

TOPIC = "conversations"
CONVERSATIONS = 60
_TURNS = (6, 18)
_PARTITIONS = 2
"""Partitions of each conversation."""
_TIMEOUT_MS = 600_000


class Generation(NamedTuple):
    """The versions of the requests of a producer."""

    name: str
    adds: int
    """AddPartitionsToTxn, of the producer or of the broker that has its batch."""
    produce: int
    commit: int
    end: int


OLDER, NEWER = Generation("older", 3, 11, 3, 4), Generation("KIP-890", 5, 12, 5, 5)


class Instance:
    """A process of a producer: the steps that gave it an identity, and its writes."""

    def __init__(self, transactional_id: str) -> None:
        self.transactional_id = transactional_id
        self.identified: list[str] = []
        """The names of its InitProducerId and EndTxn, in order."""
        self._writes: list[tuple[str, int, int, int]] = []
        """Step, partition, age of the identity, and the number of steps in `identified` at that time."""

    def has(self, *, age: int = 0) -> Identity:
        """The identity that a node has given to it by now, or `age` identities before, but not before the first."""
        steps = len(self.identified)
        return lambda answers: self._had(answers, age, steps)

    def _had(self, answers: Answers, age: int, steps: int) -> tuple[int, int]:
        found = (answers.get(step) for step in self.identified[:steps])
        given = [
            (answer.producer_id, answer.producer_epoch)
            for answer in found
            if answer is not None and not answer.error_code and answer.producer_id >= 0
        ]
        distinct = list(dict.fromkeys(given))
        return distinct[max(len(distinct) - 1 - age, 0)]

    def write(self, step: str, partition: int, *, age: int = 0) -> Build:
        """Produce of its next two records in this partition, with its identity of this age."""
        earlier, steps = tuple(self._writes), len(self.identified)
        self._writes.append((step, partition, age, steps))

        def build(answers: Answers) -> Any:
            who = self._had(answers, age, steps)
            written = sum(
                where == partition and self._had(answers, *then) == who and is_accepted(answers[name])
                for name, where, *then in earlier
            )
            data = batch(2, producer_id=who[0], producer_epoch=who[1], base_sequence=2 * written, is_transactional=True)
            return produce(TOPIC, data, partition=partition, transactional_id=self.transactional_id)(answers)

        return build


def is_accepted(answer: Any) -> bool:
    """The one batch of a Produce is in the log."""
    (topic,) = answer.responses
    (partition,) = topic.partition_responses
    return bool(partition.error_code == 0)


def conversations(seed: int) -> Script:
    """The conversations of this seed, one after the other."""
    yield from created(TOPIC, CONVERSATIONS * _PARTITIONS)
    chance = Random(seed)
    for number in range(CONVERSATIONS):
        yield from _Conversation(number, chance).whole()


class _Conversation:
    """The steps of one transactional id."""

    def __init__(self, number: int, chance: Random) -> None:
        self.id = f"conversation {number}"
        self._chance = chance
        self._generation = chance.choice((OLDER, NEWER))
        self._first_partition = number * _PARTITIONS
        self._instances = [Instance(self.id)]
        self._steps = 0

    def whole(self) -> Script:
        yield from coordinators_of(self.id)
        yield from self._fresh(self._instances[0])
        turns: dict[Callable[[], Script], int] = {
            self._add: 1 if self._generation is OLDER else 0,
            self._produce: 5,
            self._commit_offsets: 2,
            self._end: 4,
            self._resume: 2,
            self._next_instance: 1,
        }
        for turn in self._chance.choices(list(turns), list(turns.values()), k=self._chance.randint(*_TURNS)):
            yield from turn()
        yield from self._result()

    def _step(self, what: str) -> str:
        self._steps += 1
        return f"{self.id}, {self._generation.name}, {self._steps}: {what}"

    def _drawn(self) -> tuple[Instance, int]:
        """An instance, most often the newest, and the age of the identity that it uses, most often 0."""
        instance = self._instances[-1] if self._chance.random() < 0.85 else self._chance.choice(self._instances)
        return instance, 0 if self._chance.random() < 0.85 else self._chance.randint(1, 2)

    def _partition(self) -> int:
        return self._first_partition + self._chance.randrange(_PARTITIONS)

    def _fresh(self, instance: Instance) -> Script:
        step = self._step("a fresh instance")
        request = InitProducerIdRequest(transactional_id=self.id, transaction_timeout_ms=_TIMEOUT_MS)
        yield from ask(step, request, 5, until=is_complete)
        instance.identified.append(step)

    def _next_instance(self) -> Script:
        """A second instance begins, and the first one goes on as if it had not: nothing is open at that time.

        Where a transaction is open, Kafka aborts it for an old instance: that is a difference of its own.
        """
        instance = Instance(self.id)
        yield from self._fresh(instance)
        old = self._chance.choice(self._instances)
        request = initializes(old.has(age=self._chance.randint(0, 1)), name=self.id)
        yield from self._named(old, request, "an old instance names its identity")
        self._instances.append(instance)

    def _resume(self) -> Script:
        """The newest instance names its identity, whatever is open; perhaps twice, as if it had not heard."""
        instance = self._instances[-1]
        request = initializes(instance.has(), name=self.id)
        yield from self._named(instance, request, "the producer names its identity")
        if self._chance.random() < 0.5:
            yield from self._named(instance, request, "it names that identity again")

    def _named(self, instance: Instance, request: Build, what: str) -> Script:
        step = self._step(what)
        yield from ask(step, request, 5, until=is_complete)
        instance.identified.append(step)

    def _add(self) -> Script:
        instance, age = self._drawn()
        yield from self._added(instance, self._partition(), age)

    def _added(self, instance: Instance, partition: int, age: int) -> Script:
        step = self._step("a partition is added")
        request = adds(instance.has(age=age), TOPIC, partition, name=self.id)
        yield from ask(step, request, self._generation.adds, until=is_added)

    def _produce(self) -> Script:
        instance, age = self._drawn()
        partition = self._partition()
        if self._generation is OLDER and self._chance.random() < 0.7:
            yield from self._added(instance, partition, age)
        step = self._step("a batch")
        yield Ask(step, self._generation.produce, instance.write(step, partition, age=age), until=is_written)

    def _commit_offsets(self) -> Script:
        instance, age = self._drawn()
        who = instance.has(age=age)
        if self._generation is OLDER and self._chance.random() < 0.8:
            step = self._step("the group's partition is added")
            yield from ask(step, adds_offsets(who, self.id, name=self.id), 3, until=is_complete)
        step = self._step("offsets")
        request = commits(who, self._steps, topic=TOPIC, group=self.id, name=self.id)
        yield from ask(step, request, self._generation.commit, until=is_coordinated)

    def _end(self) -> Script:
        instance, age = self._drawn()
        is_commit = self._chance.random() < 0.6
        step = self._step("a commit" if is_commit else "an abort")
        request = ends(instance.has(age=age), is_commit=is_commit, name=self.id)
        yield from ask(step, request, self._generation.end, until=is_complete)
        instance.identified.append(step)
        yield from self._completed()

    def _completed(self) -> Script:
        described = DescribeTransactionsRequest(transactional_ids=(self.id,))
        yield from ask(self._step("its state"), described, until=_is_complete)

    def _result(self) -> Script:
        """Everything is aborted that was open, and all readers see the same."""
        yield from self._fresh(Instance(self.id))
        for partition in range(self._first_partition, self._first_partition + _PARTITIONS):
            for isolation in (0, 1):
                step = self._step(f"the records of partition {partition}, isolation {isolation}")
                yield from ask(step, fetch((partition, 0), topic=TOPIC, isolation=isolation), 12)
        yield from ask(self._step("the offsets of its group"), fetch_offsets(self.id, 0, topic=TOPIC, stable=True), 8)


def _is_complete(answer: Any) -> bool:
    return all(not each.transaction_state.startswith("Prepare") for each in answer.transaction_states)


def coordinators_of(name: str) -> Script:
    """There are coordinators for a transactional id and for a group of the same name."""
    for key_type in (0, 1):
        asked = FindCoordinatorRequest(key_type=key_type, coordinator_keys=(name,))
        yield from ask(f"{name}: a coordinator of type {key_type}", asked, 4, until=is_found)
