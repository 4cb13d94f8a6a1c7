"""The membership of a consumer in its group, by the protocol that its settings name or its server offers."""

import asyncio
import logging
from functools import cache
from typing import Final

from tailrace.client.group.classic_host import ClassicGroupMember
from tailrace.client.group.committed_offsets import ConsumerGroupMetadata
from tailrace.client.group.consumer_host import ConsumerGroupMember
from tailrace.client.group.member_host import MemberHost
from tailrace.client.group.membership import RebalanceListener, TopicSubscription
from tailrace.client.reader_settings import ReaderSettings
from tailrace.client.router import Router
from tailrace.model.errors import ErrorCode, KafkaError

_NOT_OFFERED: Final = (
    ErrorCode.UNSUPPORTED_VERSION,
    ErrorCode.GROUP_ID_NOT_FOUND,
    ErrorCode.INCONSISTENT_GROUP_PROTOCOL,
)
"""The answers to a heartbeat of KIP-848 at a server that does not know the protocol, or in a classic group that cannot
change its protocol."""

_log = logging.getLogger(__name__)


@cache
def _say_why_classic(group: str, *names: str) -> None:
    """Warn that these settings choose the protocol of the group: once in a process."""
    _log.warning(
        "group %s: the member joins by the classic protocol, and not by KIP-848, which lacks %s; leave %s out, or say"
        ' group_protocol="classic"',
        group,
        " and ".join(names),
        "the setting" if len(names) == 1 else "the settings",
    )


class GroupMember:
    """A membership, from the first poll to `leave`.

    Without group.protocol the member joins by KIP-848, and by the classic protocol if the server does not offer KIP-848
    (KIP-1274).
    """

    def __init__(self, router: Router, settings: ReaderSettings, listener: RebalanceListener) -> None:
        self._router = router
        self._settings = settings
        self._listener = listener
        self._subscription = TopicSubscription()
        self.changed = asyncio.Event()
        """Set when the member's state has changed."""
        protocol = settings.first_group_protocol
        if settings.group_protocol is None and protocol == "classic":
            _say_why_classic(str(settings.group), *settings.classic_settings)
        kind = ClassicGroupMember if protocol == "classic" else ConsumerGroupMember
        self._member: MemberHost = kind(router, settings, listener, self.changed)

    def subscribe(self, subscription: TopicSubscription) -> None:
        """Read these topics from the next poll on. Raises KafkaError for a pattern in a classic group."""
        self._subscription = subscription
        self._member.subscribe(subscription)

    def on_poll(self) -> None:
        """Note a poll of the user. Raises KafkaError if the group refuses the member for good."""
        self._member.on_poll()
        fault = self._member.fault
        if fault is None:
            return
        if not self._may_become_classic(fault):
            raise fault
        _log.info("no group.protocol=consumer (%s); the classic protocol is used", fault.detail)
        self._member = ClassicGroupMember(self._router, self._settings, self._listener, self.changed)
        self._member.subscribe(self._subscription)
        self._member.on_poll()

    def _may_become_classic(self, fault: KafkaError) -> bool:
        is_chosen = self._settings.group_protocol is not None
        return isinstance(self._member, ConsumerGroupMember) and not is_chosen and fault.code in _NOT_OFFERED

    @property
    def is_stable(self) -> bool:
        """Whether the member is in the group, so that its partitions may be read."""
        return self._member.is_stable

    @property
    def trouble(self) -> KafkaError | None:
        """The fault while the coordinator cannot be reached, while a topic is missing, or while the group waits for a
        member that does not answer."""
        return self._member.trouble

    @property
    def identity(self) -> ConsumerGroupMetadata:
        """The author of commits now."""
        return self._member.identity

    async def leave(self) -> None:
        """Commit, leave the group, and stop."""
        await self._member.leave()

    async def stop(self) -> None:
        """Cancel all tasks, without leaving the group."""
        await self._member.stop()
