"""The transactions of clients as the clients know them: the instance, its writes, and the end that the instance
requested. A transaction has a number, and each of its writes has this number: `number:` begins the value of a record,
and is the metadata of an offset. A coordinator knows none of these numbers; `transactions.ledger` finds the decision by
the identity.
"""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from tailrace.model.partitions import TopicPartition
from tailrace.model.sinks import SinkMember, find_member


class Identity(NamedTuple):
    """A producer id and an epoch."""

    producer_id: int
    producer_epoch: int


class GroupOffset(NamedTuple):
    """A group's offset in a partition."""

    group_id: str
    topic_partition: TopicPartition
    offset: int


@dataclass(eq=False)
class ClientTransaction:
    """A transaction of one instance."""

    number: int
    transactional_id: str
    instance: str
    generation: int
    """The transaction.version of its client: 0, or 2 with KIP-890."""
    identity: Identity
    ordinal: int
    """The number of transactions that were begun before with this identity: only clients of the first generation begin
    more than one transaction with it."""
    partitions: set[TopicPartition] = field(default_factory=set)
    """The partitions that the transaction has added, or tried to write to."""
    written: dict[TopicPartition, dict[bytes, int]] = field(default_factory=dict)
    """The acknowledged values, with their offsets."""
    offsets: list[GroupOffset] = field(default_factory=list)
    """The acknowledged offsets, with the partition of the group."""
    wants_commit: bool | None = None
    """The end that its client has requested; None before the request."""
    answered: bool | None = None
    """The end that was answered with success."""

    def value(self, text: str) -> bytes:
        """The value of a record of this transaction."""
        return f"{self.number}:{text}".encode()

    @property
    def member(self) -> SinkMember | None:
        """The attempt of a task behind this transaction; None for any other transaction."""
        return find_member(self.transactional_id)


def number_of(value: bytes) -> int:
    """The number of the transaction that has written a value, or an offset with this metadata."""
    return int(value.partition(b":")[0])


def text_of(value: bytes) -> str:
    """The text of a value."""
    return value.partition(b":")[2].decode()


class Book:
    """The transactions of a run."""

    def __init__(self) -> None:
        self.transactions: list[ClientTransaction] = []
        self.members: dict[str, ClientTransaction] = {}
        """The transactions of attempts of tasks, by transactional id: each attempt has one transaction."""
        self.rows: dict[tuple[str, int], int] = {}
        """By sink and batch: the number of its rows, the same however often the batch is written."""
        self._begun: Counter[Identity] = Counter()

    def begin(self, transactional_id: str, instance: str, generation: int, identity: Identity) -> ClientTransaction:
        """Note a transaction whose client is about to write."""
        begun = ClientTransaction(
            len(self.transactions), transactional_id, instance, generation, identity, self._begun[identity]
        )
        self._begun[identity] += 1
        self.transactions.append(begun)
        if begun.member is not None:
            self.members[transactional_id] = begun
        return begun

    def answered(self, *, is_commit: bool, generation: int | None = None) -> Iterable[ClientTransaction]:
        """The transactions whose end was answered with success, without attempts of tasks."""
        for each in self.transactions:
            if each.answered is is_commit and generation in (None, each.generation) and each.member is None:
                yield each
