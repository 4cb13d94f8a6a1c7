"""KIP-211, "Revise Expiration Semantics of Consumer Group Offsets", rule by rule. Sentences are quoted in short."""

from tailrace.coordinators.config import GroupConfig
from tailrace.coordinators.groups.commands import ExpireOffsets
from tailrace.coordinators.groups.group import GroupState
from tailrace.coordinators.groups.records import GroupRecord
from tailrace.model.partitions import TopicPartition
from tailrace.protocol.messages.consumer_protocol import ConsumerProtocolSubscription
from tailrace.protocol.schema import encode_prefixed
from testkit.coordinators.group_coordinator import GroupScene

RETENTION_MS = 7 * 24 * 3_600_000
T, U = TopicPartition("t", 0), TopicPartition("u", 0)


def _scene() -> GroupScene:
    return GroupScene(config=GroupConfig(group_initial_rebalance_delay_ms=0))


def _sweep(scene: GroupScene, *, after_ms: int) -> set[TopicPartition]:
    """Let wall-clock time pass, sweep, and tell which offsets are left."""
    scene.wall_ms += after_ms
    scene.submit(ExpireOffsets(group_ids=(scene.group_id,)))
    return set(scene.coordinator.reports.offsets(scene.group_id))


def _form(scene: GroupScene, *topics: str) -> tuple[str, int]:
    subscription = encode_prefixed(ConsumerProtocolSubscription(topics=topics), 1)
    (member_id,), generation_id = scene.form_group("c", protocols={"range": subscription})
    return member_id, generation_id


def test_offsets_of_a_group_with_members_do_not_expire_however_old() -> None:
    """ "no offset expires while the group is active"."""
    scene = _scene()
    member_id, generation_id = _form(scene, "t")
    scene.commit_offset(1, generation_id=generation_id, member_id=member_id)
    assert _sweep(scene, after_ms=RETENTION_MS * 10) == {T}


def test_the_retention_of_offsets_begins_when_the_last_member_leaves() -> None:
    """ "expire ... when the group has been Empty for offsets.retention.minutes"."""
    scene = _scene()
    member_id, generation_id = _form(scene, "t")
    scene.commit_offset(1, generation_id=generation_id, member_id=member_id)
    scene.wall_ms += RETENTION_MS
    scene.leave(member_id)
    assert scene.state is GroupState.EMPTY
    assert _sweep(scene, after_ms=RETENTION_MS - 1) == {T}
    assert _sweep(scene, after_ms=1) == set()


def test_a_group_expires_with_its_last_offset() -> None:
    scene = _scene()
    member_id, generation_id = _form(scene, "t")
    scene.commit_offset(1, generation_id=generation_id, member_id=member_id)
    scene.leave(member_id)
    _sweep(scene, after_ms=RETENTION_MS)
    assert scene.state is GroupState.DEAD
    assert scene.log[-1] == GroupRecord(group_id="g", value=None)
    again = GroupScene(log=scene.log)
    assert again.state is GroupState.DEAD, "a restart is a replay"


def test_an_emptied_group_without_offsets_expires_at_the_next_look() -> None:
    scene = _scene()
    member_id, _ = _form(scene, "t")
    scene.leave(member_id)
    _sweep(scene, after_ms=0)
    assert scene.state is GroupState.DEAD


def test_a_group_with_a_joining_member_does_not_expire() -> None:
    scene = _scene()
    member_id, _ = _form(scene, "t")
    scene.leave(member_id)
    scene.new_id()
    _sweep(scene, after_ms=RETENTION_MS)
    assert scene.state is GroupState.EMPTY


def test_offsets_of_topics_without_subscribers_expire_by_their_commit() -> None:
    """ "if the group is still active but no longer subscribed to the topic"."""
    scene = _scene()
    member_id, generation_id = _form(scene, "t")
    for topic in ("t", "u"):
        scene.commit_offset(1, generation_id=generation_id, member_id=member_id, topic=topic)
    assert _sweep(scene, after_ms=RETENTION_MS - 1) == {T, U}
    assert _sweep(scene, after_ms=1) == {T}


def test_offsets_of_a_group_with_unreadable_subscriptions_do_not_expire() -> None:
    scene = _scene()
    (member_id,), generation_id = scene.form_group("c", protocols={"range": b"\x00"})
    scene.commit_offset(1, generation_id=generation_id, member_id=member_id, topic="u")
    assert _sweep(scene, after_ms=RETENTION_MS) == {U}


def test_offsets_of_a_group_in_a_rebalance_do_not_expire() -> None:
    scene = _scene()
    member_id, generation_id = _form(scene, "t")
    scene.commit_offset(1, generation_id=generation_id, member_id=member_id, topic="u")
    scene.join(scene.new_id(), protocols={"range": b""})
    assert scene.state is GroupState.PREPARING_REBALANCE
    assert _sweep(scene, after_ms=RETENTION_MS) == {U}


def test_offsets_of_simple_consumers_expire_by_their_commit() -> None:
    """ "standalone consumers: ... when it has been offsets.retention.minutes since the last commit"."""
    scene = _scene()
    scene.commit_offset(1)
    assert _sweep(scene, after_ms=RETENTION_MS - 1) == {T}
    scene.commit_offset(2)
    assert _sweep(scene, after_ms=RETENTION_MS - 1) == {T}
    assert _sweep(scene, after_ms=1) == set()
    assert scene.state is GroupState.DEAD


def test_offsets_expire_after_the_retention_time_that_their_commit_named() -> None:
    """OffsetCommit v2 to v4: "retention_time" beats the broker's, in both directions."""
    scene = _scene()
    for topic, retention_ms in (("t", 1_000), ("u", RETENTION_MS * 2)):
        scene.commit_offset(1, topic=topic, retention_time_ms=retention_ms)
    assert _sweep(scene, after_ms=1_000) == {U}
    assert _sweep(scene, after_ms=RETENTION_MS) == {U}
    assert _sweep(scene, after_ms=RETENTION_MS) == set()


def test_a_group_whose_end_is_not_yet_in_the_log_is_kept() -> None:
    scene = _scene()
    member_id, generation_id = _form(scene, "t")
    scene.commit_offset(1, generation_id=generation_id, member_id=member_id)
    scene.wall_ms += RETENTION_MS * 2
    scene.holds_writes = True
    scene.leave(member_id)
    scene.fail_write()
    scene.holds_writes = False
    assert _sweep(scene, after_ms=0) == {T}


def test_the_end_of_a_group_that_could_not_be_written_is_written_by_the_next_sweep() -> None:
    scene = _scene()
    member_id, generation_id = _form(scene, "t")
    scene.commit_offset(1, generation_id=generation_id, member_id=member_id)
    scene.holds_writes = True
    scene.leave(member_id)
    sweep = ExpireOffsets(group_ids=("g",))
    assert scene.coordinator.decide(sweep, scene.wall_ms).records == (), "it is on its way"
    scene.fail_write()
    scene.holds_writes = False
    assert _sweep(scene, after_ms=0) == {T}
    again = GroupScene(log=scene.log)
    assert again.state is GroupState.EMPTY, "no member comes back with another coordinator"
    assert again.form_group("c")[1] > generation_id + 1
    assert _sweep(scene, after_ms=RETENTION_MS - 1) == {T}
    assert _sweep(scene, after_ms=1) == set()
    assert scene.state is GroupState.DEAD
