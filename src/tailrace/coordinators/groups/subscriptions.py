"""Subscriptions of members of a classic group of type "consumer": the one place that reads their metadata."""

from tailrace.coordinators.groups.group import ClassicGroup
from tailrace.model.errors import MalformedMessage
from tailrace.protocol.messages.consumer_protocol import ConsumerProtocolSubscription, decode_prefixed


def subscribed_topics(group: ClassicGroup) -> frozenset[str] | None:
    """The topics that any member subscribes to, or None if one of them speaks another language than Kafka's."""
    try:
        return frozenset(
            topic
            for member in group.members.values()
            for topic in decode_prefixed(ConsumerProtocolSubscription, member.metadata_for(group.protocol_name)).topics
        )
    except MalformedMessage:
        return None
