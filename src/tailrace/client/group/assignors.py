"""The assignors of a classic group: its leader deals the partitions out to the members, as Kafka's own do. Pure."""

from collections.abc import Callable, Mapping, Sequence

from tailrace.model.partitions import TopicPartition

Assignment = dict[str, list[TopicPartition]]
"""Member id -> its partitions."""

Assignor = Callable[[Mapping[str, Sequence[str]], Mapping[str, int]], Assignment]
"""(member id -> subscribed topics, topic -> number of partitions) -> assignment. Every member is in the result."""


def assign_range(subscriptions: Mapping[str, Sequence[str]], partition_counts: Mapping[str, int]) -> Assignment:
    """Per topic, a range of partitions for each subscribed member; the first members may get one more."""
    assignment: Assignment = {member: [] for member in subscriptions}
    for topic in sorted(partition_counts):
        members = sorted(member for member, topics in subscriptions.items() if topic in topics)
        if not members:
            continue
        share, left_over = divmod(partition_counts[topic], len(members))
        first = 0
        for index, member in enumerate(members):
            end = first + share + (1 if index < left_over else 0)
            assignment[member] += [TopicPartition(topic, partition) for partition in range(first, end)]
            first = end
    return assignment


def assign_round_robin(subscriptions: Mapping[str, Sequence[str]], partition_counts: Mapping[str, int]) -> Assignment:
    """Give all partitions of all topics to the members in turn; a member is skipped for topics not subscribed to."""
    assignment: Assignment = {member: [] for member in subscriptions}
    members = sorted(subscriptions)
    turn = 0
    for topic in sorted(partition_counts):
        if not any(topic in topics for topics in subscriptions.values()):
            continue
        for partition in range(partition_counts[topic]):
            while topic not in subscriptions[members[turn % len(members)]]:
                turn += 1
            assignment[members[turn % len(members)]].append(TopicPartition(topic, partition))
            turn += 1
    return assignment


ASSIGNORS: Mapping[str, Assignor] = {"range": assign_range, "roundrobin": assign_round_robin}
