"""A follower that consumers read from, and what its answers have, for tests of KIP-392."""

from tailrace.model.errors import ErrorCode
from tailrace.protocol.messages.fetch import PartitionData
from testkit.nodes.data_path import Exchange, records_of
from testkit.nodes.replica_reads import FollowingBroker

WAIT_MS = 500
DEBUGGING = -2


def values(answer: PartitionData) -> list[bytes | None]:
    return [record.value for record in records_of(answer.records)]


def code(exchange: Exchange) -> ErrorCode:
    return ErrorCode(exchange.fetched.error_code)


def following(*committed: bytes, uncommitted: tuple[bytes, ...] = ()) -> FollowingBroker:
    """A follower that has these records, and knows how far they are committed."""
    bench = FollowingBroker()
    if committed:
        bench.receive(*committed)
    if uncommitted:
        bench.receive(*uncommitted)
    bench.hear(len(committed))
    return bench
