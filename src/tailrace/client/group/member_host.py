"""The common part of the hosts of both memberships: what hinders a member, and the texts that tell a user of it."""

import asyncio
import logging
from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import ClassVar, Final, assert_never

from tailrace.client.group.committed_offsets import ConsumerGroupMetadata
from tailrace.client.group.group_wait import GroupWait
from tailrace.client.group.membership import RebalanceListener, RemovalCause, TopicSubscription
from tailrace.client.reader_settings import ReaderSettings
from tailrace.client.router import Router
from tailrace.model.errors import ErrorCode, KafkaError

LEAVE_TIMEOUT_MS: Final = 5_000
"""The limit of a request that leaves the group. Without an answer the session timeout removes the member."""

_log = logging.getLogger(__name__)


class MemberHost(ABC):
    """A membership in a group, from the first poll to `leave`."""

    protocol: ClassVar[str]
    """The value of group.protocol."""

    def __init__(
        self, router: Router, settings: ReaderSettings, listener: RebalanceListener, changed: asyncio.Event
    ) -> None:
        """`changed` is set when the state of the member has changed."""
        assert settings.group is not None, "a member has a group"
        self._router = router
        self._settings = settings
        self._group = settings.group
        self._listener = listener
        self._changed = changed
        self.max_poll_interval_ms = settings.max_poll_interval_ms
        self._polled_at_ms = 0
        self._refresh: asyncio.Task[None] | None = None
        self._next_refresh_ms = 0
        self._bug: BaseException | None = None
        self.fault: KafkaError | None = None
        """The error with which the group has refused this member for good."""
        self._coordinator_trouble: KafkaError | None = None
        self._topic_trouble: KafkaError | None = None
        self._wait = GroupWait(router, settings.group)

    # the user

    @property
    @abstractmethod
    def is_stable(self) -> bool:
        """Whether the member is in the group, so that its partitions may be read."""

    @property
    @abstractmethod
    def identity(self) -> ConsumerGroupMetadata:
        """The author of commits now."""

    @abstractmethod
    def subscribe(self, subscription: TopicSubscription) -> None:
        """Read these topics from the next poll on. Raises KafkaError for a subscription that the protocol lacks."""

    @abstractmethod
    def on_poll(self) -> None:
        """Note a poll of the user."""

    @abstractmethod
    async def leave(self) -> None:
        """Release the partitions, leave the group, and stop."""

    @abstractmethod
    async def stop(self) -> None:
        """Cancel all tasks, without leaving the group."""

    @property
    def trouble(self) -> KafkaError | None:
        """The fault while the coordinator cannot be reached, while a topic is missing, or while the group waits for a
        member that does not answer."""
        return self._coordinator_trouble or self._topic_trouble or self._wait.trouble

    # for the hosts

    def _author(self, epoch: int, member_id: str) -> ConsumerGroupMetadata:
        return ConsumerGroupMetadata(self._group, epoch, member_id, self._settings.group_instance_id)

    @property
    def _heartbeat_timeout_ms(self) -> int:
        return min(self._router.request_timeout_ms, self._settings.session_timeout_ms)

    def _refusal(self, code: ErrorCode, detail: str | None = None) -> KafkaError:
        return KafkaError(code, detail or self._cause(code))

    def _cause(self, code: ErrorCode) -> str:
        """The meaning of the code for this member, with the setting to change: an answer has no text of its own."""
        settings, group = self._settings, f"group {self._group!r}"
        match code:
            case ErrorCode.INVALID_SESSION_TIMEOUT:
                return (
                    f"session.timeout.ms {settings.session_timeout_ms}; the broker of {group} takes"
                    " group.min.session.timeout.ms to group.max.session.timeout.ms, by default 6000 to 1800000"
                )
            case ErrorCode.INCONSISTENT_GROUP_PROTOCOL:
                strategies = ", ".join(settings.partition_assignment_strategy)
                return (
                    f"partition.assignment.strategy {strategies}; the members of {group} have no strategy in common"
                    " with it: give all members the same"
                )
            case ErrorCode.GROUP_MAX_SIZE_REACHED:
                return f"{group} has as many members as its broker allows (group.max.size)"
            case ErrorCode.FENCED_INSTANCE_ID:
                return (
                    f"another process has group.instance.id {settings.group_instance_id!r} in {group} now: give each"
                    " process an id of its own"
                )
            case _:
                return f"{group} refuses this consumer"

    def _warn_of_removal(self, cause: RemovalCause) -> None:
        text = removal_text(cause, self._settings, is_classic=self.protocol == "classic")
        _log.warning("group %r: %s", self._group, text)

    def _plan_refresh(self, *, is_missing: bool) -> None:
        """Look at the topics again: soon while a topic is missing, else when the metadata is old."""
        pause_ms = self._router.retry_backoff_max_ms if is_missing else self._router.view.max_age_ms
        self._next_refresh_ms = self._router.now_ms() + pause_ms

    def _note_missing(self, topics: Iterable[str]) -> None:
        """Note a topic that is missing, to look again soon."""
        self._topic_trouble = self._router.view.missing(topics)
        if self._topic_trouble is not None:
            self._plan_refresh(is_missing=True)


def removal_text(cause: RemovalCause, settings: ReaderSettings, *, is_classic: bool) -> str:
    """The text of a warning that the member is out of its group, with the cause and the way out."""
    session = f"session_timeout_ms ({settings.session_timeout_ms})"
    poll = f"max_poll_interval_ms ({settings.max_poll_interval_ms})"
    match cause:
        case RemovalCause.POLL_OVERDUE:
            why = (
                f"the consumer was not polled for {poll}, and has left: poll more often, take fewer records at a time"
                " (max_poll_records), or raise the setting"
            )
        case RemovalCause.SILENCE:
            why = f"the coordinator has not answered the consumer for {session}, and may have removed it"
        case RemovalCause.UNKNOWN_MEMBER if is_classic:
            why = (
                f"the group has removed the consumer: no heartbeat came for {session}, as when code blocks the event"
                " loop, or an administrator removed it"
            )
        case RemovalCause.OLD_GENERATION if is_classic:
            why = "the group has gone on without the consumer, whose heartbeats came too late for a rebalance"
        case RemovalCause.UNKNOWN_MEMBER | RemovalCause.OLD_GENERATION:
            why = (
                "the group has removed the consumer: no heartbeat came for the group's consumer.session.timeout.ms, as"
                f" when code blocks the event loop; or partitions that leave were kept for {poll}; or an administrator"
                " removed the consumer"
            )
        case _:
            assert_never(cause)
    return f"{why}; it joins again at its next poll, and records since the last commit may come again"
