"""Commits of ranges, and questions for them, as a node carries them out (KIP-X): from frame to `__consumer_offsets`."""

from collections.abc import Iterator, Sequence

import pytest

from tailrace.coordinators.groups.commands import ExpireOffsets
from tailrace.coordinators.groups.records import OffsetCommitValue
from tailrace.metadata.commands import TopicReference
from tailrace.metadata.feature_levels import FIRST_WITH_KEY_RANGES
from tailrace.model.errors import ErrorCode
from tailrace.model.key_ranges import HASH_SPACE
from tailrace.protocol.declaration import unknown_tags
from tailrace.protocol.messages.configs import (
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResource,
    IncrementallyAlterableConfig,
)
from tailrace.protocol.messages.fetch import WireKeyRange
from tailrace.protocol.messages.offsets import (
    NO_RANGE_BUDGET,
    UNKNOWN_STATE_EPOCH,
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
    OffsetCommitResponsePartition,
    OffsetDeleteRequest,
    OffsetDeleteRequestPartition,
    OffsetDeleteRequestTopic,
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
    OffsetFetchResponsePartitions,
    WireRangeBudget,
    WireRectangle,
)
from tailrace.protocol.schema import decode, encode_bytes
from tailrace.server.context import RequestContext, RequestServices
from tailrace.server.groups.commits import OffsetCommitHandler
from tailrace.server.groups.partition_ends import PartitionEnds
from tailrace.server.response_errors import ResponseErrors
from tailrace.server.slices import STEP
from tailrace.testing.disk import SimulatedDisk
from testkit.coordinators.transaction_path import TransactionalClient, TransactionPath
from testkit.nodes.ports import DeferredPeer
from testkit.quorum.controller_commands import delete_topics

E = ErrorCode
HALF = HASH_SPACE // 2
LAST = HASH_SPACE - 1
RECORDS = 100
"""In each of the partitions."""


def new_node(files: SimulatedDisk | None = None, **settings: str) -> TransactionPath:
    named = {name.replace("_", "."): value for name, value in settings.items()}
    return TransactionPath(
        "/data", files=files or SimulatedDisk(seed=1), settings={**TransactionPath.SETTINGS, **named}
    )


@pytest.fixture
def node() -> TransactionPath:
    return filled(new_node())


def filled(node: TransactionPath, *, partitions: int = 2) -> TransactionPath:
    node.create_topics("orders", partitions=partitions)
    node.find_coordinator("g")
    node.produce("orders", *[b"x"] * RECORDS)
    return node


def low(first: int, last: int) -> WireRectangle:
    return WireRectangle(first_offset=first, last_offset=last, first_hash=0, last_hash=HALF - 1)


def high(first: int, last: int) -> WireRectangle:
    return WireRectangle(first_offset=first, last_offset=last, first_hash=HALF, last_hash=LAST)


def partition_of(
    *ranges: WireRectangle, offset: int = -1, state_epoch: int = UNKNOWN_STATE_EPOCH, partition: int = 0
) -> OffsetCommitRequestPartition:
    return OffsetCommitRequestPartition(
        partition_index=partition,
        committed_offset=offset,
        committed_metadata="",
        ranges=ranges,
        state_epoch=state_epoch,
    )


def commit(
    node: TransactionPath,
    *ranges: WireRectangle,
    offset: int = -1,
    state_epoch: int = UNKNOWN_STATE_EPOCH,
    topic: str = "orders",
    member: tuple[str, int] = ("", -1),
    version: int = 9,
) -> OffsetCommitResponsePartition:
    return commit_all(
        node,
        partition_of(*ranges, offset=offset, state_epoch=state_epoch),
        topic=topic,
        member=member,
        version=version,
    )[0]


def commit_all(
    node: TransactionPath,
    *partitions: OffsetCommitRequestPartition,
    topic: str = "orders",
    member: tuple[str, int] = ("", -1),
    version: int = 9,
) -> Sequence[OffsetCommitResponsePartition]:
    named = version < 10
    request = OffsetCommitRequest(
        group_id="g",
        member_id=member[0],
        generation_id_or_member_epoch=member[1],
        topics=(
            OffsetCommitRequestTopic(
                name=topic if named else "",
                topic_id=bytes(16) if named else node.topic_id(topic),
                partitions=partitions,
            ),
        ),
    )
    answered: Sequence[OffsetCommitResponsePartition] = node.send(request, version).response.topics[0].partitions
    return answered


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
    topic = OffsetCommitRequestTopic(name="orders", partitions=partitions)
    request = OffsetCommitRequest(group_id="g", member_id="", topics=(topic,))
    return handler.handle(request, context.intercepted(taken.append)), taken


def progress(node: TransactionPath, *key_ranges: WireKeyRange, partition: int = 0) -> OffsetFetchResponsePartitions:
    asked = OffsetFetchRequestTopics(name="orders", partition_indexes=(partition,))
    group = OffsetFetchRequestGroup(group_id="g", topics=(asked,), include_ranges=True, key_ranges=key_ranges)
    (answer,) = node.send(OffsetFetchRequest(groups=(group,)), 8).response.groups
    assert answer.error_code == E.NONE
    found: OffsetFetchResponsePartitions = answer.topics[0].partitions[0]
    return found


def stand(node: TransactionPath) -> tuple[int, tuple[WireRectangle, ...], int]:
    """Stable offset, ranges and state epoch."""
    found = progress(node)
    return found.committed_offset, found.committed_ranges, found.state_epoch


class TestRangesAreCommitted:
    @pytest.mark.parametrize("version", [8, 9, 10])
    def test_beside_those_that_were(self, node: TransactionPath, version: int) -> None:
        first = commit(node, low(0, 9), version=version)
        assert (first.error_code, first.range_budget) == (E.NONE, WireRangeBudget(used=1, limit=4096))
        assert stand(node) == (0, (low(0, 9),), 0)
        second = commit(node, high(0, 4), version=version)
        assert second.range_budget.used == 1
        assert stand(node) == (5, (low(5, 9),), 0)
        assert node.committed("g", "orders") == 5, "other clients see the stable offset"
        assert commit(node, high(5, 9), low(10, 11), version=version).range_budget.used == 1
        assert stand(node) == (10, (low(10, 11),), 0)

    def test_and_repeating_them_changes_nothing(self, node: TransactionPath) -> None:
        for _ in range(3):
            assert commit(node, low(20, 29), high(50, 59)).error_code == E.NONE
        assert stand(node) == (0, (low(20, 29), high(50, 59)), 0)

    def test_of_a_group_without_progress_from_the_offset_that_the_reader_knows(self, node: TransactionPath) -> None:
        commit(node, low(40, 44), offset=40)
        assert stand(node) == (40, (low(40, 44),), 0)

    def test_many_in_one_turn_lose_nothing(self, node: TransactionPath) -> None:
        """A decision reads what earlier decisions have appended, flushed or not."""
        exchanges = []
        for number in range(20):
            request = OffsetCommitRequest(
                group_id="g",
                member_id="",
                topics=(
                    OffsetCommitRequestTopic(
                        name="orders",
                        partitions=(partition_of(low(4 * number, 4 * number + 1)),),
                    ),
                ),
            )
            exchanges.append(node.send(request, 9, same_turn=True))
        node.end_turn()
        assert {exchange.response.topics[0].partitions[0].error_code for exchange in exchanges} == {E.NONE}
        assert stand(node)[1] == tuple(low(4 * number, 4 * number + 1) for number in range(20))

    def test_for_good(self) -> None:
        files = SimulatedDisk(seed=1)
        node = filled(new_node(files))
        commit(node, low(3, 9), offset=2)
        commit(node, high(0, 9))
        before = stand(node)
        assert before == (2, (low(3, 9), high(2, 9)), 0)
        node.stop()
        again = new_node(files)
        again.find_coordinator("g")
        assert stand(again) == before

    def test_beside_plain_commits_of_other_partitions(self, node: TransactionPath) -> None:
        answers = commit_all(node, partition_of(low(0, 1)), partition_of(offset=0, partition=1))
        assert [answer.error_code for answer in answers] == [E.NONE, E.NONE]
        assert [answer.range_budget for answer in answers] == [WireRangeBudget(used=1, limit=4096), NO_RANGE_BUDGET]
        assert progress(node, partition=1).committed_ranges == ()


class TestPlainCommits:
    def test_of_a_member_forward_keep_the_ranges_beyond(self, node: TransactionPath) -> None:
        member = node.form_group("g")
        commit(node, low(0, 9), member=member)
        assert commit(node, offset=5, member=member).error_code == E.NONE
        assert stand(node) == (5, (low(5, 9),), 0)

    def test_of_a_member_backward_are_a_rewind(self, node: TransactionPath) -> None:
        member = node.form_group("g")
        commit(node, low(10, 19), offset=10, member=member)
        commit(node, offset=3, member=member)
        assert stand(node) == (3, (), 1)
        assert commit(node, low(10, 19), state_epoch=0, member=member).error_code == E.FENCED_STATE_EPOCH
        assert commit(node, low(10, 19), member=member).error_code == E.FENCED_STATE_EPOCH
        assert commit(node, low(10, 19), state_epoch=1, member=member).error_code == E.NONE

    def test_outside_the_group_are_a_reset(self, node: TransactionPath) -> None:
        commit(node, low(0, 9))
        commit(node, offset=5)
        assert stand(node) == (5, (), 1)
        commit(node, offset=7)
        assert stand(node) == (7, (), 1), "forward, with nothing beyond: no frontier is lower"

    @pytest.mark.parametrize("version", [2, 3, 4])
    def test_with_a_retention_time_of_their_own_keep_the_ranges(self, node: TransactionPath, version: int) -> None:
        """Their form of the record has no tagged fields."""
        member = node.form_group("g")
        commit(node, low(0, 9), member=member)
        request = OffsetCommitRequest(
            group_id="g",
            member_id=member[0],
            generation_id_or_member_epoch=member[1],
            retention_time_ms=60_000,
            topics=(OffsetCommitRequestTopic(name="orders", partitions=(partition_of(offset=2),)),),
        )
        assert node.send(request, version).response.topics[0].partitions[0].error_code == E.NONE
        assert stand(node) == (2, (low(2, 9),), 0)

    def test_of_a_group_that_has_no_ranges_are_as_ever(self, node: TransactionPath) -> None:
        commit(node, offset=50)
        assert stand(node) == (50, (), 0)
        commit(node, offset=60)
        assert stand(node) == (60, (), 0)
        assert commit(node, low(60, 69), state_epoch=0).error_code == E.NONE

    def test_backward_are_known_to_the_readers_of_ranges_that_come(self, node: TransactionPath) -> None:
        """A reader that began at the offset before the rewind may commit late what it has done from there on."""
        commit(node, offset=50)
        commit(node, offset=20)
        assert stand(node) == (20, (), 1)
        assert commit(node, low(50, 59), state_epoch=0).error_code == E.FENCED_STATE_EPOCH

    @pytest.mark.parametrize("version", [2, 3, 4])
    def test_with_a_retention_time_and_no_ranges_have_it_after_a_rewind_too(
        self, node: TransactionPath, version: int
    ) -> None:
        """Their clients know no ranges: their groups are as ever."""
        commit(node, offset=9)
        for offset in (3, 5):
            request = OffsetCommitRequest(
                group_id="g",
                member_id="",
                retention_time_ms=60_000,
                topics=(OffsetCommitRequestTopic(name="orders", partitions=(partition_of(offset=offset),)),),
            )
            assert node.send(request, version).response.topics[0].partitions[0].error_code == E.NONE
            (value,) = node.coordinators.host_of("g").machine.reports.offsets("g").values()
            assert (value.offset, value.expire_timestamp >= 0) == (offset, True)

    def test_have_their_leader_epoch_for_their_own_offset_alone(self, node: TransactionPath) -> None:
        """Ranges that join on to the offset move it on: the record before it has another epoch, perhaps."""
        member = node.form_group("g")
        commit(node, WireRectangle(first_offset=5, last_offset=9, first_hash=0, last_hash=LAST), member=member)
        request = OffsetCommitRequest(
            group_id="g",
            member_id=member[0],
            generation_id_or_member_epoch=member[1],
            topics=(
                OffsetCommitRequestTopic(
                    name="orders",
                    partitions=(
                        OffsetCommitRequestPartition(
                            partition_index=0, committed_offset=5, committed_leader_epoch=3, committed_metadata=""
                        ),
                    ),
                ),
            ),
        )
        node.send(request, 9)
        (value,) = node.coordinators.host_of("g").machine.reports.offsets("g").values()
        assert (value.offset, value.leader_epoch) == (10, -1)

    def test_with_a_state_epoch_say_that_the_log_was_truncated(self, node: TransactionPath) -> None:
        """KIP-320: nothing is done from there on, and nothing below becomes done."""
        member = node.form_group("g")
        commit(node, low(3, 50), offset=2, member=member)
        assert commit(node, offset=30, state_epoch=1, member=member).error_code == E.FENCED_STATE_EPOCH
        assert commit(node, offset=30, state_epoch=0, member=member).error_code == E.NONE
        assert stand(node) == (2, (low(3, 29),), 1)
        assert commit(node, offset=1, state_epoch=1, member=member).error_code == E.NONE
        assert stand(node) == (1, (), 2)

    def test_of_no_offset_keep_the_state_epoch(self, node: TransactionPath) -> None:
        commit(node, low(0, 9))
        commit(node, offset=-1)
        assert commit(node, low(0, 9)).error_code == E.FENCED_STATE_EPOCH


class TestRefusals:
    @pytest.mark.parametrize(
        "ranges",
        [
            pytest.param((low(5, 4),), id="inverted offsets"),
            pytest.param((low(-1, 4),), id="a negative offset"),
            pytest.param((WireRectangle(first_offset=0, last_offset=1, first_hash=9, last_hash=8),), id="inverted"),
            pytest.param((WireRectangle(first_offset=0, last_offset=1, first_hash=-1, last_hash=8),), id="a hash < 0"),
            pytest.param(
                (WireRectangle(first_offset=0, last_offset=1, first_hash=0, last_hash=HASH_SPACE),),
                id="a hash too large",
            ),
            pytest.param((low(0, 4), low(4, 5)), id="overlapping"),
            pytest.param((low(0, 2**63 - 1),), id="the last offset there can be"),
            pytest.param(tuple(low(2 * n, 2 * n) for n in range(1_025)), id="too many"),
            pytest.param((low(0, RECORDS),), id="behind the end"),
        ],
    )
    def test_bad_ranges_change_nothing(self, node: TransactionPath, ranges: tuple[WireRectangle, ...]) -> None:
        commit(node, low(0, 9))
        before = stand(node)
        answers = commit_all(node, partition_of(*ranges), partition_of(offset=0, partition=1))
        assert [answer.error_code for answer in answers] == [E.INVALID_REQUEST, E.NONE]
        assert stand(node) == before

    def test_a_partition_named_twice_with_ranges_is_refused_both_times(self, node: TransactionPath) -> None:
        for pair in (
            (partition_of(low(0, 1)), partition_of(low(2, 3))),
            (partition_of(offset=3), partition_of(low(2, 3))),
            (partition_of(low(2, 3)), partition_of(offset=3)),
        ):
            assert [answer.error_code for answer in commit_all(node, *pair)] == [E.INVALID_REQUEST] * 2
        assert node.committed("g", "orders") == -1

    def test_unknown_topics_and_partitions_have_their_codes(self, node: TransactionPath) -> None:
        assert commit(node, low(0, 1), topic="absent").error_code == E.UNKNOWN_TOPIC_OR_PARTITION
        assert commit_all(node, partition_of(low(0, 1), partition=7))[0].error_code == E.UNKNOWN_TOPIC_OR_PARTITION

    def test_of_a_stranger_to_the_group_are_refused(self, node: TransactionPath) -> None:
        member = node.form_group("g")
        assert commit(node, low(0, 1), member=("stranger", 1)).error_code == E.UNKNOWN_MEMBER_ID
        assert commit(node, low(0, 1), member=(member[0], member[1] + 1)).error_code == E.ILLEGAL_GENERATION

    def test_more_rectangles_than_the_limit(self) -> None:
        node = filled(new_node(offsets_max_ranges_per_partition="3"))
        full = commit(node, low(10, 10), low(20, 20), low(30, 30))
        assert (full.error_code, full.range_budget) == (E.NONE, WireRangeBudget(used=3, limit=3))
        refused = commit(node, low(40, 40))
        assert refused.error_code == E.OFFSET_METADATA_TOO_LARGE
        assert refused.range_budget == WireRangeBudget(used=3, limit=3)
        assert commit(node, low(11, 19)).range_budget.used == 2, "a commit that needs no more is taken"

    def test_key_ranges_that_is_switched_off(self) -> None:
        off = filled(new_node(group_key_ranges_enable="false"))
        assert commit(off, low(0, 1)).error_code == E.POLICY_VIOLATION
        assert off.committed("g", "orders") == -1

    def test_a_topic_that_may_not_be_shared(self, node: TransactionPath) -> None:
        change = IncrementallyAlterableConfig(name="key.ranges.enable", config_operation=0, value="false")
        of_topic = IncrementalAlterConfigsResource(resource_type=2, resource_name="orders", configs=(change,))
        node.send(IncrementalAlterConfigsRequest(resources=(of_topic,), validate_only=False), 1)
        assert commit(node, low(0, 1)).error_code == E.POLICY_VIOLATION

    def test_a_topic_that_is_deleted_during_the_look_up_is_no_view(self) -> None:
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

    def test_a_coordinator_that_moves_while_a_leader_is_asked_takes_nothing(self, node: TransactionPath) -> None:
        peer = DeferredPeer()
        steps, taken = begun(node, peer, partition_of(low(0, 1)), partition_of(offset=3, partition=1))
        assert list(steps) == [] == taken
        node.coordinators.host_of("g").close()
        ((_, _, on_reply),) = peer.waiting
        on_reply(None)
        codes = [partition.error_code for partition in taken[0].topics[0].partitions]
        assert codes == [E.REQUEST_TIMED_OUT, E.NOT_COORDINATOR]

    def test_a_view(self, node: TransactionPath) -> None:
        assert commit(node, low(0, 1), topic="orders.shared-2").error_code == E.POLICY_VIOLATION
        assert commit(node, offset=1, topic="orders.shared-2").error_code == E.NONE

    def test_an_answer_has_a_bound(self, node: TransactionPath, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("tailrace.server.groups.committed_ranges.MOST_RECTANGLES", 3)
        commit(node, low(10, 10), low(20, 20), low(30, 30))
        assert len(progress(node).committed_ranges) == 3
        commit(node, low(40, 40))
        assert progress(node).error_code == E.INVALID_REQUEST
        assert node.committed("g", "orders") == 0, "its offset is seen all the same"

    def test_the_groups_of_a_question_share_its_bound(
        self, node: TransactionPath, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("tailrace.server.groups.committed_ranges.MOST_RECTANGLES", 3)
        commit(node, low(10, 10), low(20, 20))
        asked = OffsetFetchRequestTopics(name="orders", partition_indexes=(0,))
        some = OffsetFetchRequestGroup(group_id="g", topics=(asked,), include_ranges=True)
        all_of_them = OffsetFetchRequestGroup(group_id="g", topics=None, include_ranges=True)
        answer = node.send(OffsetFetchRequest(groups=(some, all_of_them)), 8).response
        codes = [group.topics[0].partitions[0].error_code for group in answer.groups]
        assert codes == [E.NONE, E.INVALID_REQUEST]


class TestQuestions:
    def test_only_those_that_ask_get_ranges(self, node: TransactionPath) -> None:
        """Golden: the answer to a client that knows no ranges has the bytes of an answer for a group without ranges."""
        commit(node, offset=7)
        asked = OffsetFetchRequestTopics(name="orders", partition_indexes=(0,))
        request = OffsetFetchRequest(groups=(OffsetFetchRequestGroup(group_id="g", topics=(asked,)),))
        before = {version: encode_bytes(node.send(request, version).response, version) for version in (8, 9)}
        commit(node, low(7, 20), offset=7)
        for version, golden in before.items():
            assert encode_bytes(node.send(request, version).response, version) == golden

    def test_a_plain_commit_is_answered_with_the_bytes_of_kafka(self, node: TransactionPath) -> None:
        commit(node, low(0, 9))
        request = OffsetCommitRequest(
            group_id="g",
            member_id="",
            topics=(OffsetCommitRequestTopic(name="orders", partitions=(partition_of(offset=1),)),),
        )
        answer = encode_bytes(node.send(request, 9).response, 9)
        assert answer == b"\0\0\0\0" + b"\2" + b"\7orders" + b"\2" + b"\0\0\0\0" + b"\0\0" + b"\0" + b"\0" + b"\0"

    def test_for_some_hashes_give_the_ranges_of_these(self, node: TransactionPath) -> None:
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
    def test_for_bad_hashes_are_refused(self, node: TransactionPath, key_ranges: tuple[WireKeyRange, ...]) -> None:
        group = OffsetFetchRequestGroup(group_id="g", topics=(), include_ranges=True, key_ranges=key_ranges)
        (answer,) = node.send(OffsetFetchRequest(groups=(group,)), 8).response.groups
        assert answer.error_code == E.INVALID_REQUEST


class TestTheirEnd:
    def test_a_deleted_offset_takes_its_ranges_along(self, node: TransactionPath) -> None:
        commit(node, low(0, 9))
        topics = (
            OffsetDeleteRequestTopic(name="orders", partitions=(OffsetDeleteRequestPartition(partition_index=0),)),
        )
        node.send(OffsetDeleteRequest(group_id="g", topics=topics), 0)
        assert stand(node) == (-1, (), UNKNOWN_STATE_EPOCH)
        assert commit(node, low(10, 19), state_epoch=0).error_code == E.FENCED_STATE_EPOCH, "late"

    def test_an_expired_offset_too(self) -> None:
        node = filled(new_node(offsets_retention_minutes="1"))
        commit(node, low(0, 9))
        node.clock.advance(61_000)
        host = node.coordinators.host_of("g")
        host.decide_until_done([ExpireOffsets(group_ids=("g",))])
        node.end_turn()
        assert node.committed("g", "orders") == -1

    def test_a_topic_made_anew_has_none(self, node: TransactionPath) -> None:
        commit(node, low(0, 9), offset=0)
        node.submit(delete_topics(TopicReference(name="orders")))
        node.end_turn()
        node.create_topics("orders")
        assert stand(node) == (-1, (), UNKNOWN_STATE_EPOCH)


def test_a_transaction_that_has_set_the_offset_comes_first(node: TransactionPath) -> None:
    """The transaction's end would replace the ranges, or the ranges would replace its offset."""
    commit(node, low(0, 9))
    client = TransactionalClient(node, "copier")
    assert client.initialize() is E.NONE
    assert client.add_offsets("g") is E.NONE
    assert client.commit_offset("g", "orders", 4) is E.NONE
    assert commit(node, low(10, 11)).error_code == E.UNSTABLE_OFFSET_COMMIT
    assert client.end(is_commit=True) is E.NONE
    assert stand(node) == (4, (low(4, 9),), 0), "forward, so what is done beyond is kept"
    assert commit(node, low(10, 11)).error_code == E.NONE


def test_a_record_of_a_broker_without_ranges_keeps_the_offset(node: TransactionPath) -> None:
    """A broker of the release before decodes the record, and sees the stable offset and tags that it does not know."""
    commit(node, low(3, 9), high(0, 4))
    (value,) = node.coordinators.host_of("g").machine.reports.offsets("g").values()
    assert value.ranges
    again = decode(OffsetCommitValue, 4, encode_bytes(value, 4))
    assert again == value
    assert not unknown_tags(again)


def test_ranges_need_metadata_version(node: TransactionPath) -> None:
    assert node.controller.image.metadata_version == FIRST_WITH_KEY_RANGES
    assert node.controller.image.knows_key_ranges
