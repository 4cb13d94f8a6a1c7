"""The common part of the memberships of both protocols: events from the user, effects on the user's partitions.

`classic_member` is the membership of Kafka's classic groups, `consumer_member` the membership of KIP-848.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum, auto
from typing import Final, NamedTuple, Protocol

from tailrace.model.errors import ErrorCode
from tailrace.model.partitions import TopicPartition

COORDINATOR_MOVED: Final = frozenset(
    (
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.NETWORK_EXCEPTION,
        ErrorCode.REQUEST_TIMED_OUT,
    )
)
"""The codes after which the coordinator is looked up again."""


class TopicSubscription(NamedTuple):
    """The topics that a member wants to read."""

    topics: tuple[str, ...] = ()
    """In order, each name once."""
    pattern: str | None = None
    """A regular expression (RE2) for more topics, which the coordinator compares with whole names (KIP-848)."""


class RebalanceListener(Protocol):
    """The callbacks of a rebalance; a `ConsumerReader` implements them."""

    def hold(self, partitions: frozenset[TopicPartition]) -> None:
        """Return no more records of these partitions: they leave."""
        ...

    def apart(self, partitions: frozenset[TopicPartition]) -> Iterable[frozenset[TopicPartition]]:
        """The partitions in sets: each set is revoked, and leaves, apart from the others."""
        ...

    async def revoke(self, partitions: frozenset[TopicPartition]) -> None:
        """Let what runs end, and commit the progress in these partitions, which are held."""
        ...

    def assigned_by_group(self, partitions: tuple[TopicPartition, ...]) -> None:
        """Read exactly these partitions from now on. Partitions that were read before keep their positions."""
        ...

    def lost(self) -> None:
        """Stop reading, without a commit: other members may have the partitions already."""
        ...

    def wake(self) -> None:
        """Let a poll that waits look at the member again."""
        ...


# Events


@dataclass(frozen=True, slots=True)
class Polled:
    """The user polls: the records of the poll before are processed."""


@dataclass(frozen=True, slots=True)
class SubscriptionChanged:
    """The topics, or their numbers of partitions, have changed."""


@dataclass(frozen=True, slots=True)
class PollOverdue:
    """The user has not polled for max.poll.interval.ms: other members get the partitions."""


@dataclass(frozen=True, slots=True)
class Leave:
    """The user closes the consumer."""


# Effects


@dataclass(frozen=True, slots=True)
class Lost:
    """Stop reading the partitions, without a commit: other members may have them already."""


class RemovalCause(Enum):
    """The reason for which a member is out of its group against its user's will."""

    POLL_OVERDUE = auto()
    """No poll came for max.poll.interval.ms."""
    SILENCE = auto()
    """The coordinator has not answered for session.timeout.ms."""
    UNKNOWN_MEMBER = auto()
    """The coordinator has removed the member: no heartbeat came for session.timeout.ms, or an administrator removed
    it."""
    OLD_GENERATION = auto()
    """The group has gone on to another generation without the member."""


@dataclass(frozen=True, slots=True)
class Removed:
    """The member is out of the group, and joins again at the next poll."""

    cause: RemovalCause


@dataclass(frozen=True, slots=True)
class ForgetCoordinator:
    """The coordinator has moved, or cannot be reached."""


@dataclass(frozen=True, slots=True)
class Failed:
    """The group refuses this member for good."""

    code: ErrorCode
