"""The assignors that run in the coordinator (KIP-848; pure).

`uniform` spreads all partitions evenly and moves as few as possible. `range` gives each member a run of consecutive
partitions of every topic, so that partitions of the same number in topics of the same size go to the same member.
"""

import heapq
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from tailrace.coordinators.groups.consumer.assignment import Assignment


@dataclass(frozen=True, slots=True)
class Subscriber:
    """A member, for an assignor."""

    member_id: str
    order: str
    """The key for the order of members: the instance id of a static member, which outlives its member id."""
    topic_ids: frozenset[bytes]
    target: Assignment
    """The present target assignment of the member."""


Assignor = Callable[[Sequence[Subscriber], Mapping[bytes, int]], dict[str, Assignment]]
"""Members, and the partition count of each topic that exists -> every member's target."""

_Mutable = dict[str, dict[bytes, set[int]]]


def assign_range(members: Sequence[Subscriber], topics: Mapping[bytes, int]) -> dict[str, Assignment]:
    """Assign to each member a run of consecutive partitions of each topic; the first members get the longer runs."""
    result: _Mutable = {member.member_id: {} for member in members}
    ordered = sorted(members, key=lambda member: member.order)
    for topic_id, count in topics.items():
        readers = [member for member in ordered if topic_id in member.topic_ids]
        start = 0
        for index, member in enumerate(readers):
            size = count // len(readers) + (index < count % len(readers))
            if size:
                result[member.member_id][topic_id] = set(range(start, start + size))
            start += size
    return _frozen(result)


def assign_uniform(members: Sequence[Subscriber], topics: Mapping[bytes, int]) -> dict[str, Assignment]:
    """Assign as evenly as the subscriptions allow; a member keeps its partitions unless the result would be uneven."""
    if not members:
        return {}
    spread = _Spread(members, topics)
    spread.keep()
    spread.hand_out()
    spread.level()
    return _frozen(spread.result)


class _Spread:
    """An assignment under way."""

    def __init__(self, members: Sequence[Subscriber], topics: Mapping[bytes, int]) -> None:
        self._members = sorted(members, key=lambda member: member.order)
        self._topics = topics
        self.result: _Mutable = {member.member_id: {} for member in self._members}
        self._loads = {member.member_id: 0 for member in self._members}
        self._place = {member.member_id: index for index, member in enumerate(self._members)}
        self._free: dict[bytes, set[int]] = {topic_id: set(range(count)) for topic_id, count in topics.items()}
        self._heaps: dict[frozenset[str], list[tuple[int, int, str]]] = {}
        """For each set of readers, the readers by load; a stale entry is corrected at the top of the heap."""
        readers: dict[bytes, list[str]] = {topic_id: [] for topic_id in topics}
        for member in self._members:
            for topic_id in member.topic_ids & topics.keys():
                readers[topic_id].append(member.member_id)
        self._readers = {topic_id: frozenset(names) for topic_id, names in readers.items()}

    def keep(self) -> None:
        """Members keep their partitions, up to the even share if every member has the same subscription."""
        is_alike = len({frozenset(member.topic_ids & self._topics.keys()) for member in self._members}) == 1
        total = sum(self._topics[topic_id] for topic_id in self._members[0].topic_ids & self._topics.keys())
        least, more = divmod(total, len(self._members))
        for member in self._members:
            quota = least + (more > 0) if is_alike else sum(self._topics.values())
            for topic_id, partitions in member.target:
                free = self._free.get(topic_id, set()) if topic_id in member.topic_ids else ()
                for partition in partitions:
                    if partition in free and self._loads[member.member_id] < quota:
                        self._give(topic_id, partition, member.member_id)
            if is_alike and self._loads[member.member_id] > least:
                more -= 1

    def hand_out(self) -> None:
        """Assign each free partition to the reader with the fewest partitions."""
        for topic_id in sorted(self._free):
            for partition in sorted(self._free[topic_id]) if self._readers[topic_id] else ():
                self._give(topic_id, partition, self._least_loaded(topic_id))

    def level(self) -> None:
        """Move a partition from a member to a reader that has at least two partitions fewer, until there is no such
        pair."""
        is_moved = True
        while is_moved:
            is_moved = False
            for owner in sorted(self._loads, key=lambda name: -self._loads[name]):
                for topic_id in sorted(self.result[owner]):
                    while self.result[owner].get(topic_id):
                        least = self._least_loaded(topic_id)
                        if self._loads[owner] - self._loads[least] < 2:
                            break
                        partition = max(self.result[owner][topic_id])
                        self._take(topic_id, partition, owner)
                        self._give(topic_id, partition, least)
                        is_moved = True

    def _least_loaded(self, topic_id: bytes) -> str:
        readers = self._readers[topic_id]
        heap = self._heaps.get(readers)
        if heap is None:
            heap = self._heaps[readers] = [(self._loads[name], self._place[name], name) for name in readers]
            heapq.heapify(heap)
        while heap[0][0] != self._loads[heap[0][2]]:
            _, place, name = heap[0]
            heapq.heapreplace(heap, (self._loads[name], place, name))
        return heap[0][2]

    def _give(self, topic_id: bytes, partition: int, member_id: str) -> None:
        self._free[topic_id].discard(partition)
        self.result[member_id].setdefault(topic_id, set()).add(partition)
        self._loads[member_id] += 1

    def _take(self, topic_id: bytes, partition: int, member_id: str) -> None:
        self.result[member_id][topic_id].discard(partition)
        self._loads[member_id] -= 1
        for readers, heap in self._heaps.items():
            # A lower load needs an entry of its own: the old entry is further down in the heap.
            if member_id in readers:
                heapq.heappush(heap, (self._loads[member_id], self._place[member_id], member_id))


def _frozen(result: _Mutable) -> dict[str, Assignment]:
    return {member_id: Assignment.of(topics) for member_id, topics in result.items()}


DEFAULT_ASSIGNOR = "uniform"
ASSIGNORS: Mapping[str, Assignor] = {DEFAULT_ASSIGNOR: assign_uniform, "range": assign_range}
