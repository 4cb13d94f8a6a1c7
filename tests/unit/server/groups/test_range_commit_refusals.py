"""Commits of ranges that a coordinator refuses, and requests for committed ranges (KIP-X)."""

from collections.abc import Iterator

import pytest

from tailrace.metadata.commands import TopicReference
from tailrace.model.key_ranges import HASH_SPACE
from tailrace.protocol.messages.configs import (
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResource,
    IncrementallyAlterableConfig,
)
from tailrace.protocol.messages.fetch import WireKeyRange
from tailrace.protocol.messages.offsets import (
    OffsetCommitRequestPartition,
    OffsetCommitResponse,
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    WireRangeBudget,
    WireRectangle,
)
from tailrace.protocol.schema import encode_bytes
from tailrace.server.context import RequestContext, RequestServices
from tailrace.server.groups.commits import OffsetCommitHandler
from tailrace.server.groups.partition_ends import PartitionEnds
from tailrace.server.response_errors import ResponseErrors
from tailrace.server.slices import STEP
from testkit.coordinators.transaction_path import TransactionPath
from testkit.nodes.ports import DeferredPeer
from testkit.quorum.controller_commands import delete_topics
from unit.server.groups.range_commits_of_node import (
    HALF,
    ORDERS_0,
    RECORDS,
    E,
    commit,
    commit_all,
    filled,
    high,
    low,
    new_node,
    partition_of,
    progress,
    request_of,
    stand,
)


@pytest.fixture
def node() -> TransactionPath:
    return filled(new_node())


def begun(
    node: TransactionPath, peer: DeferredPeer, *partitions: OffsetCommitRequestPartition
) -> tuple[Iterator[None], list[OffsetCommitResponse]]:
    """The steps of a commit on a node that leads none of the partitions, and the list of the answer to come."""
    taken: list[OffsetCommitResponse] = []
    context = RequestContext(node.connection, 0, 8, 9, 1, "test", RequestServices(ResponseErrors()))
    ends = PartitionEnds(
        find_partition=lambda *_: None, image=lambda: node.coordinators.image, peer=peer, timeout_ms=5000
    )
    handler = OffsetCommitHandler(coordinators=node.coordinators, ends=ends, takes_ranges=lambda: True)
    return handler.handle(request_of(*partitions), context.intercepted(taken.append)), taken


@pytest.mark.parametrize(
    "ranges",
    [
        pytest.param((low(5, 4),), id="inverted offsets"),
        pytest.param((low(-1, 4),), id="a negative offset"),
        pytest.param((WireRectangle(first_offset=0, last_offset=1, first_hash=9, last_hash=8),), id="inverted"),
        pytest.param((WireRectangle(first_offset=0, last_offset=1, first_hash=-1, last_hash=8),), id="a hash < 0"),
        pytest.param(
            (WireRectangle(first_offset=0, last_offset=1, first_hash=0, last_hash=HASH_SPACE),), id="a hash too large"
        ),
        pytest.param((low(0, 4), low(4, 5)), id="overlapping"),
        pytest.param((low(0, 2**63 - 1),), id="the last offset there can be"),
        pytest.param(tuple(low(2 * n, 2 * n) for n in range(1_025)), id="too many"),
        pytest.param((low(0, RECORDS),), id="behind the end"),
    ],
)
def test_a_commit_of_bad_ranges_changes_nothing(node: TransactionPath, ranges: tuple[WireRectangle, ...]) -> None:
    commit(node, low(0, 9))
    before = stand(node)
    answers = commit_all(node, partition_of(*ranges), partition_of(offset=0, partition=1))
    assert [answer.error_code for answer in answers] == [E.INVALID_REQUEST, E.NONE]
    assert stand(node) == before


def test_a_commit_that_names_a_partition_twice_with_ranges_is_refused_both_times(node: TransactionPath) -> None:
    for pair in (
        (partition_of(low(0, 1)), partition_of(low(2, 3))),
        (partition_of(offset=3), partition_of(low(2, 3))),
        (partition_of(low(2, 3)), partition_of(offset=3)),
    ):
        assert [answer.error_code for answer in commit_all(node, *pair)] == [E.INVALID_REQUEST] * 2
    assert node.committed("g", "orders") == -1


def test_a_commit_of_ranges_of_unknown_topics_and_partitions_has_their_codes(node: TransactionPath) -> None:
    assert commit(node, low(0, 1), topic="absent").error_code == E.UNKNOWN_TOPIC_OR_PARTITION
    assert commit_all(node, partition_of(low(0, 1), partition=7))[0].error_code == E.UNKNOWN_TOPIC_OR_PARTITION


def test_a_strangers_commit_of_ranges_is_refused(node: TransactionPath) -> None:
    member = node.form_group("g")
    assert commit(node, low(0, 1), member=("stranger", 1)).error_code == E.UNKNOWN_MEMBER_ID
    assert commit(node, low(0, 1), member=(member[0], member[1] + 1)).error_code == E.ILLEGAL_GENERATION


def test_a_commit_of_ranges_above_the_limit_is_refused() -> None:
    node = filled(new_node(offsets_max_ranges_per_partition="3"))
    full = commit(node, low(10, 10), low(20, 20), low(30, 30))
    assert (full.error_code, full.range_budget) == (E.NONE, WireRangeBudget(used=3, limit=3))
    refused = commit(node, low(40, 40))
    assert refused.error_code == E.OFFSET_METADATA_TOO_LARGE
    assert refused.range_budget == WireRangeBudget(used=3, limit=3)
    assert commit(node, low(11, 19)).range_budget.used == 2, "a commit that needs no more is taken"


def test_a_commit_of_ranges_is_refused_where_key_ranges_are_switched_off() -> None:
    off = filled(new_node(group_key_ranges_enable="false"))
    assert commit(off, low(0, 1)).error_code == E.POLICY_VIOLATION
    assert off.committed("g", "orders") == -1


def test_a_commit_of_ranges_is_refused_for_a_topic_without_key_ranges(node: TransactionPath) -> None:
    change = IncrementallyAlterableConfig(name="key.ranges.enable", config_operation=0, value="false")
    of_topic = IncrementalAlterConfigsResource(resource_type=2, resource_name="orders", configs=(change,))
    node.send(IncrementalAlterConfigsRequest(resources=(of_topic,), validate_only=False), 1)
    assert commit(node, low(0, 1)).error_code == E.POLICY_VIOLATION
    assert commit(node, low(0, 1), topic="orders.shared-2").error_code == E.UNKNOWN_TOPIC_OR_PARTITION


def test_a_topic_that_is_deleted_during_a_commit_of_ranges_is_no_view() -> None:
    """Partitions are looked up in steps, and an image may come in between: the code must allow another try."""
    node, peer = filled(new_node(), partitions=STEP + 1), DeferredPeer()
    steps, taken = begun(node, peer, *(partition_of(low(0, 1), partition=number) for number in range(STEP + 1)))
    next(steps)
    node.submit(delete_topics(TopicReference(name="orders")))
    node.end_turn()
    assert list(steps) == [] == peer.waiting
    node.end_turn()
    codes = {partition.error_code for partition in taken[0].topics[0].partitions}
    assert codes == {E.REQUEST_TIMED_OUT}, "no leader confirms the ends of the partitions"


def test_a_coordinator_that_moves_during_a_commit_of_ranges_takes_nothing(node: TransactionPath) -> None:
    peer = DeferredPeer()
    steps, taken = begun(node, peer, partition_of(low(0, 1)), partition_of(offset=3, partition=1))
    assert list(steps) == [] == taken
    node.coordinators.host_of("g").close()
    ((_, _, on_reply),) = peer.waiting
    on_reply(None)
    codes = [partition.error_code for partition in taken[0].topics[0].partitions]
    assert codes == [E.REQUEST_TIMED_OUT, E.NOT_COORDINATOR]


def test_an_answer_with_committed_ranges_has_a_bound(node: TransactionPath, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tailrace.server.groups.committed_ranges.MOST_RECTANGLES", 3)
    commit(node, low(10, 10), low(20, 20), low(30, 30))
    assert len(progress(node).committed_ranges) == 3
    commit(node, low(40, 40))
    assert progress(node).error_code == E.INVALID_REQUEST
    assert node.committed("g", "orders") == 0, "its offset is seen all the same"


def test_the_groups_of_a_request_for_committed_ranges_share_its_bound(
    node: TransactionPath, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tailrace.server.groups.committed_ranges.MOST_RECTANGLES", 3)
    commit(node, low(10, 10), low(20, 20))
    some = OffsetFetchRequestGroup(group_id="g", topics=(ORDERS_0,), include_ranges=True)
    all_of_them = OffsetFetchRequestGroup(group_id="g", topics=None, include_ranges=True)
    answer = node.send(OffsetFetchRequest(groups=(some, all_of_them)), 8).response
    codes = [group.topics[0].partitions[0].error_code for group in answer.groups]
    assert codes == [E.NONE, E.INVALID_REQUEST]


def test_clients_that_do_not_ask_get_no_committed_ranges(node: TransactionPath) -> None:
    """Golden: the answer to a client that knows no ranges has the bytes of an answer for a group without ranges."""
    commit(node, offset=7)
    request = OffsetFetchRequest(groups=(OffsetFetchRequestGroup(group_id="g", topics=(ORDERS_0,)),))
    before = {version: encode_bytes(node.send(request, version).response, version) for version in (8, 9)}
    commit(node, low(7, 20), offset=7)
    for version, golden in before.items():
        assert encode_bytes(node.send(request, version).response, version) == golden


def test_a_plain_commit_of_a_group_with_ranges_is_answered_with_the_bytes_of_kafka(node: TransactionPath) -> None:
    commit(node, low(0, 9))
    answer = encode_bytes(node.send(request_of(partition_of(offset=1)), 9).response, 9)
    assert answer == b"\0\0\0\0" + b"\2" + b"\7orders" + b"\2" + b"\0\0\0\0" + b"\0\0" + b"\0" + b"\0" + b"\0"


def test_a_request_for_some_hashes_gives_the_committed_ranges_of_these(node: TransactionPath) -> None:
    commit(node, low(3, 9), high(4, 9))
    assert progress(node, WireKeyRange(first=5, last=6)).committed_ranges == (low(3, 9),)
    assert progress(node, WireKeyRange(first=HALF - 1, last=HALF)).committed_ranges == (low(3, 9), high(4, 9))


@pytest.mark.parametrize(
    "key_ranges",
    [
        (WireKeyRange(first=2, last=1),),
        (WireKeyRange(first=0, last=HASH_SPACE),),
        (WireKeyRange(first=0, last=5), WireKeyRange(first=5, last=6)),
        tuple(WireKeyRange(first=2 * n, last=2 * n) for n in range(1_025)),
    ],
)
def test_a_request_for_committed_ranges_of_bad_hashes_is_refused(
    node: TransactionPath, key_ranges: tuple[WireKeyRange, ...]
) -> None:
    group = OffsetFetchRequestGroup(group_id="g", topics=(), include_ranges=True, key_ranges=key_ranges)
    (answer,) = node.send(OffsetFetchRequest(groups=(group,)), 8).response.groups
    assert answer.error_code == E.INVALID_REQUEST
