"""Leaderships that go back to the preferred leaders by themselves (`auto.leader.rebalance.enable`, pure).

The preferred leader of a partition is its first replica. A broker leads nothing after a restart. When other brokers
lead more than a given share of the partitions that prefer a broker, the controller elects the preferred broker there,
with a batch of elections in each command. Only a live replica in sync is elected, so no record is lost. The shares of
brokers are judged independently.
"""

from collections import Counter
from itertools import chain, islice
from typing import Final

from tailrace.metadata.commands import BalanceLeaders, LeadersBalanced
from tailrace.metadata.deciding.elections import with_preferred_leader
from tailrace.metadata.deciding.state_changes import change_record
from tailrace.metadata.derive import SLICE, Steps
from tailrace.metadata.image import ClusterImage
from tailrace.metadata.image_draft import ImageCircumstances
from tailrace.metadata.records.kinds import MetadataRecord
from tailrace.model.ids import BrokerId, TopicId
from tailrace.model.machines import Decision
from tailrace.model.partitions import PartitionState

MAX_ELECTIONS: Final = 1_000
"""The most leaders that one command elects (as in Kafka's controller): each election stops some clients for a
moment."""


class LeaderBalance:
    """The decision on a BalanceLeaders command."""

    def __init__(self, image: ClusterImage) -> None:
        self._image = image
        self._circumstances = ImageCircumstances(image)
        self._preferring: Counter[BrokerId] = Counter()
        self._led_by_others: Counter[BrokerId] = Counter()
        self._electable: dict[BrokerId, list[tuple[TopicId, int, PartitionState]]] = {}
        """The partitions that each broker could lead, at most `MAX_ELECTIONS` + 1 of a broker: the last shows that
        partitions are left over."""

    def deciding(self, command: BalanceLeaders) -> Steps[Decision[MetadataRecord, LeadersBalanced]]:
        """Records of the elections, and the brokers for which the next command has to go on."""
        partitions = self._image.partitions()
        while part := tuple(islice(partitions, SLICE)):
            for topic_id, number, state in part:
                self._count(topic_id, number, state)
            yield
        brokers = self._brokers_to_balance(command)
        due = chain.from_iterable(self._electable.get(broker_id, ()) for broker_id in brokers)
        elected = tuple(islice(due, MAX_ELECTIONS))
        left = Counter(state.replicas[0] for _, _, state in elected)
        unfinished = tuple(b for b in brokers if len(self._electable.get(b, ())) > left[b])
        records = tuple(change_record(number, state, with_preferred_leader(state)) for _, number, state in elected)
        return Decision(records=records, response=LeadersBalanced(elected=len(records), unfinished=unfinished))

    def _count(self, topic_id: TopicId, number: int, state: PartitionState) -> None:
        preferred = state.replicas[0]
        self._preferring[preferred] += 1
        if state.leader == preferred:
            return
        self._led_by_others[preferred] += 1
        if preferred in state.in_sync_replicas and self._circumstances.is_alive(preferred):
            electable = self._electable.setdefault(preferred, [])
            if len(electable) <= MAX_ELECTIONS:
                electable.append((topic_id, number, state))

    def _brokers_to_balance(self, command: BalanceLeaders) -> list[BrokerId]:
        """Brokers whose balance is under way, then brokers with more than the allowed share led by other brokers."""
        allowed = command.allowed_percentage
        due = [b for b, led in self._led_by_others.items() if led * 100 > allowed * self._preferring[b]]
        return list(dict.fromkeys((*command.unfinished, *sorted(due))))
