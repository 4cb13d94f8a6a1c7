"""A marker that comes late, or again, does not end the next transaction of its producer: nothing of it is visible.

The network may repeat a request: a coordinator that has waited too long for an answer sends its marker once more, on
another connection, and the copy on the old one arrives when the next transaction is open.
"""

from typing import NamedTuple

import pytest

from tailrace.model.errors import ErrorCode
from tailrace.model.partitions import GROUP_OFFSETS_TOPIC
from tailrace.protocol.records.control import NO_DECISION
from tailrace.testing.disk import SimulatedDisk
from testkit.coordinators.transaction_path import MarkerCopies, TransactionalClient, TransactionPath, transaction_node

E = ErrorCode
versions = pytest.mark.parametrize("version", [0, 2])
ends = pytest.mark.parametrize("is_commit", [True, False])


class VerifiedBatch(NamedTuple):
    """A batch that waits for the coordinator's confirmation of its partition."""

    producer_id: int
    producer_epoch: int
    base_sequence: int = 1


def _write(client: TransactionalClient, value: bytes, offset: int) -> None:
    """Records in two topics, and an offset of the group."""
    for topic in ("orders", "bills"):
        assert client.write(topic, value) is E.NONE
    assert client.set_offset(offset) is E.NONE


def _committed(
    files: SimulatedDisk | None = None, *, version: int
) -> tuple[TransactionPath, MarkerCopies, TransactionalClient]:
    """A node, the markers of a client's transaction that is committed, and the client."""
    node = transaction_node(files or SimulatedDisk(seed=1))
    copies = MarkerCopies(node)
    client = TransactionalClient.begun(node, version=version)
    _write(client, b"one", 1)
    assert client.end(is_commit=True) is E.NONE
    return node, copies, client


ALL = ("orders", "bills", GROUP_OFFSETS_TOPIC)


@versions
@ends
def test_a_repeated_marker_does_not_end_the_next_transaction(version: int, is_commit: bool) -> None:
    node, copies, client = _committed(version=version)
    first = copies.markers.copy()
    _write(client, b"two", 2)
    assert copies.send_again(first) == dict.fromkeys(ALL, E.INVALID_PRODUCER_EPOCH)
    assert node.committed_values("orders") == [b"one"]
    assert node.stable_offset("g", "orders") is E.UNSTABLE_OFFSET_COMMIT
    _write(client, b"three", 3)
    assert client.end(is_commit=is_commit) is E.NONE
    expected = [b"one", b"two", b"three"] if is_commit else [b"one"]
    assert [node.committed_values(topic) for topic in ("orders", "bills")] == [expected, expected]
    assert node.stable_offset("g", "orders") == (3 if is_commit else 1)


@versions
def test_a_repetition_succeeds_while_nothing_is_open(version: int) -> None:
    """The sender has not heard the first answer, and must not give up or send for ever (KAFKA-19999)."""
    node, copies, client = _committed(version=version)
    ends_before = [node.table.get(topic, 0).log.log_end_offset for topic in ("orders", "bills")]
    assert copies.send_again() == dict.fromkeys(ALL, E.NONE)
    assert [node.table.get(topic, 0).log.log_end_offset for topic in ("orders", "bills")] == ends_before
    _write(client, b"two", 2)
    assert client.end(is_commit=True) is E.NONE
    assert node.committed_values("orders") == [b"one", b"two"]


@versions
def test_a_marker_is_known_after_restarts_of_leader_and_coordinator(version: int) -> None:
    files = SimulatedDisk(seed=3)
    _, copies, client = _committed(files, version=version)
    files.power_cut()
    files.reboot()
    client.node = again = transaction_node(files, start=2)
    again.clock.advance(5_000)
    _write(client, b"two", 2)
    codes = copies.send_again(to=again)
    assert set(codes) == set(ALL)
    assert E.NONE not in codes.values()
    assert again.committed_values("orders") == [b"one"]
    assert client.end(is_commit=False) is E.NONE
    assert again.committed_values("orders") == [b"one"]
    assert again.stable_offset("g", "orders") == 1


def test_a_repeated_marker_leaves_the_verification_of_the_next_transaction_alone() -> None:
    """Without verification an older producer's first batch is refused for good (48), though the coordinator has it."""
    node, copies, client = _committed(version=0)
    assert client.add("orders") is E.NONE
    verifications = node.table.get("orders", 0).staging.verifications
    batch = VerifiedBatch(client.producer_id, client.producer_epoch)
    verification = verifications.begin(batch, adds_partition=False)
    assert copies.send_again()["orders"] is E.NONE
    assert verifications.begin(batch, adds_partition=False) is verification


def test_only_markers_of_producers_that_keep_their_epoch_have_a_number() -> None:
    """Markers of producers with a new epoch are Kafka's, byte for byte."""
    for version, has_number in ((0, True), (2, False)):
        _, copies, _ = _committed(version=version)
        assert {marker.decision.offset != NO_DECISION for marker in copies.markers} == {has_number}
        assert {marker.transaction_version for marker in copies.markers} == {version}
