"""A member that waits for a member that does not answer says so, and says nothing while a rebalance goes its way."""

import logging
from collections.abc import Iterator

import pytest

from tailrace.client.blocking import Consumer, Producer
from tailrace.client.group import group_wait
from tailrace.client.group.described_groups import DescribedMember, GroupDescription
from tailrace.client.group.group_wait import GroupWait, waiting_text
from tailrace.model.partitions import TopicPartition
from tailrace.protocol.messages.groups import GroupDetails, MemberDetails
from tailrace.testing import Cluster
from testkit.programs.waiting import wait_until
from unit.client.new_topics import new_topic

OWNED = (TopicPartition("orders", 0),)


def member(
    name: str, *, owned: tuple[TopicPartition, ...] = (), target: tuple[TopicPartition, ...] = ()
) -> DescribedMember:
    return DescribedMember(
        member_id=name,
        group_instance_id=None,
        client_id=f"client-{name}",
        host="/10.0.0.7",
        assignment=owned,
        target=target,
        epoch=1,
    )


def described(
    *members: DescribedMember, state: str = "Stable", silent_ms: dict[str, int] | None = None
) -> GroupDescription:
    details = None
    if silent_ms is not None:
        liveness = tuple(
            MemberDetails(member_id=name, silent_ms=silence, session_timeout_ms=45_000)
            for name, silence in silent_ms.items()
        )
        details = GroupDetails(now_ms=0, events=(), members=liveness, topics=())
    return GroupDescription(
        group="g",
        state=state,
        protocol_type="consumer",
        assignor="",
        coordinator_id=1,
        coordinator="h:1",
        members=members,
        details=details,
    )


def test_a_silent_owner_is_named_with_the_end_of_its_session() -> None:
    group = described(member("old", owned=OWNED), member("new"), silent_ms={"old": 12_000, "new": 100})
    assert waiting_text(group, "new") == (
        "the group waits for member 'client-old' at 10.0.0.7, silent for 12 s: until its session of 45000 ms ends ("
        "group.consumer.session.timeout.ms), in 33 s; close() leaves a group at once"
    )


def test_a_rebalance_is_held_by_a_silent_member_whose_partitions_are_not_shown() -> None:
    group = described(member("old"), member("new"), state="PreparingRebalance", silent_ms={"old": 12_000, "new": 0})
    assert "member 'client-old' at 10.0.0.7, silent for 12 s" in (waiting_text(group, "new") or "")


@pytest.mark.parametrize(
    "group",
    [
        described(member("old", owned=OWNED), member("new"), silent_ms={"old": 5_000, "new": 0}),
        described(member("old"), member("new"), silent_ms={"old": 12_000, "new": 0}),
        described(member("old"), member("new"), state="PreparingRebalance", silent_ms={"old": 3_000, "new": 0}),
        described(member("old", owned=OWNED), member("new"), silent_ms={"old": 0, "new": 60_000}),
        described(member("old", owned=OWNED), member("new")),
    ],
    ids=["live owner", "silent without partitions", "live in a rebalance", "own silence", "more members, no details"],
)
def test_a_live_member_and_a_full_group_give_no_alarm(group: GroupDescription) -> None:
    assert waiting_text(group, "new") is None


def test_a_server_without_details_shows_the_owner_or_that_a_rebalance_lasts() -> None:
    group = described(member("old", owned=OWNED), member("new", target=OWNED), state="Reconciling")
    assert "member 'client-old' at 10.0.0.7 to give partitions up" in (waiting_text(group, "new") or "")
    group = described(member("old"), member("new"), state="PreparingRebalance")
    assert "a member that does not answer or is not polled" in (waiting_text(group, "new") or "")


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster(config={"group.consumer.heartbeat.interval.ms": "50"}) as cluster:
        yield cluster


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_a_member_behind_a_killed_member_names_it(
    cluster: Cluster, protocol: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(group_wait, "WAIT_MS", 50)
    monkeypatch.setattr(group_wait, "SILENT_MS", 500)
    topic = new_topic(cluster)
    with Producer(cluster.bootstrap_servers) as producer:
        producer.send_and_wait(topic, b"v")
    settings = {"group": topic, "topics": [topic], "group_protocol": protocol, "auto_offset_reset": "earliest"}
    killed = Consumer(cluster.bootstrap_servers, client_id="killed", **settings)  # type: ignore[arg-type]
    wait_until(lambda: killed.poll(0.1) != [])
    killed.abandon_at_exit()
    with caplog.at_level(logging.WARNING, "tailrace.client"):
        waiting = Consumer(cluster.bootstrap_servers, **settings)  # type: ignore[arg-type]
        wait_until(lambda: waiting.poll(0.1) == [] and waiting.trouble is not None)
        trouble = waiting.trouble
        assert trouble is not None
        assert "the group waits for member 'killed' at 127.0.0.1, silent for" in trouble.detail
        wait_until(lambda: waiting.poll(0.1) == [] and "waits for member 'killed'" in caplog.text)
    waiting.close()


def test_a_spare_member_looks_and_gives_no_alarm(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(group_wait, "WAIT_MS", 50)
    waits: list[GroupWait] = []
    plain = GroupWait.on_poll

    def on_poll(wait: GroupWait, member_id: str, *, is_waiting: bool) -> None:
        if is_waiting and wait not in waits:
            waits.append(wait)
        plain(wait, member_id, is_waiting=is_waiting)

    monkeypatch.setattr(GroupWait, "on_poll", on_poll)
    topic = new_topic(cluster)
    with (
        Consumer(cluster.bootstrap_servers, group=topic, topics=[topic]) as owner,
        Consumer(cluster.bootstrap_servers, group=topic, topics=[topic]) as spare,
    ):
        wait_until(lambda: owner.poll(0.05) == [] and len(owner.assignment()) == 1)

        def has_looked() -> bool:
            assert owner.poll(0.05) == spare.poll(0.05) == []
            assert spare.trouble is None
            return any(wait.looks >= 3 for wait in waits)

        wait_until(has_looked)
