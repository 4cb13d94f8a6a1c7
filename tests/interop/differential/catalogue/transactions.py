"""What a transactional producer asks first. Last in the script: Apache Kafka makes a topic for it."""

from interop.differential.script import Script, ask, every_version
from tailrace.protocol.messages.coordinators import FindCoordinatorRequest
from tailrace.protocol.messages.metadata import DescribeTopicPartitionsRequest, MetadataRequest
from tailrace.protocol.messages.producer_ids import InitProducerIdRequest

_NOT_YET = (14, 15, 16)


def everything() -> Script:
    """All topics at once: both nodes have the same."""
    yield from ask("all topics", MetadataRequest(topics=None), *range(1, 14))
    yield from ask("all topics", MetadataRequest(topics=()), 0)
    yield from ask("all partitions", DescribeTopicPartitionsRequest(topics=()))


def transactions() -> Script:
    asked = FindCoordinatorRequest(key="tx", key_type=1, coordinator_keys=("tx",))

    def is_found(answer: object) -> bool:
        found = getattr(answer, "coordinators", ()) or (answer,)
        return all(each.error_code not in _NOT_YET for each in found)  # type: ignore[attr-defined]

    yield from ask("a transaction's coordinator", asked, 1, 3, 4, 6, until=is_found)
    for timeout_ms in (60_000, 0, 2**31 - 1):
        wanted = InitProducerIdRequest(transactional_id="tx", transaction_timeout_ms=timeout_ms)
        name = f"an id for a transaction of {timeout_ms} ms"
        yield from ask(name, wanted, *every_version(InitProducerIdRequest), until=is_found)
