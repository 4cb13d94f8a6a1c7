"""Whole conversations of our own members with the coordinator of a KIP-848 group, step by step."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

from interop.differential.members.member_records import MemberRecord
from tailrace.client.blocking import Admin, Consumer, KeyedConsumer, KeyedRecord, Producer
from tailrace.model.errors import ErrorCode
from tailrace.model.partitions import TopicPartition
from testkit.programs.waiting import wait_until

PARTITIONS: Final = 6
RECORDS: Final = 12
TOPIC, LATER = "conversations", "conversations-later"
NODE_SETTINGS: Final = {"group.consumer.heartbeat.interval.ms": "200"}
"""Settings of both servers."""
KAFKA_SETTINGS: Final = {"group.consumer.min.heartbeat.interval.ms": "200"}
_NEVER_MS: Final = 600_000
_OVERDUE_MS: Final = 3_000
_LEAVING: Final = -1


class GroupTalk:
    """The members of a group that are there. Each step ends when the heartbeats of all of them have no news."""

    def __init__(self, server: str, record: MemberRecord, group: str) -> None:
        self._server = server
        self._record = record
        self._group = group
        self._members: dict[str, Consumer] = {}
        self.values: list[bytes | None] = []

    def step(self, what: str) -> None:
        self._record.step = f"{self._group}: {what}"

    def start(self, name: str, **settings: Any) -> Consumer:
        """Start a member. It reads from the first record, and commits when partitions leave."""
        given = {"auto_offset_reset": "earliest", "auto_commit_interval_ms": _NEVER_MS, **settings}
        member = Consumer(self._server, group=self._group, client_id=name, group_protocol="consumer", **given)
        self._members[name] = member
        return member

    def close(self, name: str) -> None:
        self._members.pop(name).close()

    def close_all(self) -> None:
        for name in list(self._members):
            self.close(name)

    def poll(self) -> None:
        for member in self._members.values():
            self.values += [record.value for record in member.poll(0.02)]

    def until(self, holds: Callable[[], object], what: str) -> None:
        """Poll all members until the condition holds and there is no news."""
        self.poll_until(lambda: holds() and self._record.is_quiet(self._members), what)

    def poll_until(self, holds: Callable[[], object], what: str) -> None:
        """Poll all members until the condition holds."""

        def is_over() -> bool:
            self.poll()
            return bool(holds())

        wait_until(is_over, f"{self._record.step}: {what}")

    def until_shared(self, *counts: int) -> None:
        """Poll until the members, in their order, have so many partitions each."""
        self.until(lambda: self.counts() == counts, f"the members have {counts} partitions")

    def counts(self) -> tuple[int, ...]:
        """The numbers of partitions of the members, in their order."""
        return tuple(len(member.assignment()) for member in self._members.values())


@contextmanager
def _talk(server: str, record: MemberRecord, group: str) -> Iterator[GroupTalk]:
    talk = GroupTalk(server, record, group)
    try:
        yield talk
    finally:
        talk.step("the end")
        talk.close_all()


def converse(server: str, record: MemberRecord) -> None:
    """Hold the conversations, one after the other."""
    with Admin(server) as admin, Producer(server) as producer:
        admin.create_topics({TOPIC: PARTITIONS})
        admin.commit_offsets("another", {TopicPartition(TOPIC, 0): 0})  # the coordinator is there
        for number in range(RECORDS):
            producer.send(TOPIC, b"%d" % number, key=b"%d" % (number % 2), partition=number % PARTITIONS)
    with record.reading():
        _share(server, record)
        _come_back(server, record)
        _take_no_place(server, record)
        _match(server, record)
        _be_late(server, record)
        _work_by_key(server, record)


def _share(server: str, record: MemberRecord) -> None:
    with _talk(server, record, "shared") as talk:
        talk.step("the first joins and reads")
        first = talk.start("alice", topics=[TOPIC])
        talk.until(lambda: len(talk.values) == RECORDS, "the records are read")
        talk.step("it commits")
        first.commit()
        talk.until_shared(6)
        talk.step("a second joins")
        talk.start("bob", topics=[TOPIC])
        talk.until_shared(3, 3)
        talk.step("the second leaves")
        talk.close("bob")
        talk.until_shared(6)
        assert len(talk.values) == RECORDS, "nothing is read again"
        talk.step("a second joins that wants ranges")
        talk.start("carol", topics=[TOPIC], group_remote_assignor="range")
        talk.until_shared(3, 3)
        talk.step("the second leaves again")
        talk.close("carol")
        talk.until_shared(6)
        talk.step("the first subscribes to nothing more")
        first.subscribe(["conversations-nowhere"])
        talk.until_shared(0)
        talk.step("the first leaves")
        talk.close("alice")


def _come_back(server: str, record: MemberRecord) -> None:
    """A static member leaves for a while: nothing of its partitions is given to the other member."""
    with _talk(server, record, "static") as talk:
        talk.step("two join")
        talk.start("dave", topics=[TOPIC], group_instance_id="one")
        talk.until_shared(6)
        talk.start("erin", topics=[TOPIC])
        talk.until_shared(3, 3)
        talk.step("the static member leaves for a while")
        talk.close("dave")
        talk.until_shared(3)
        talk.step("the static member is back")
        talk.start("dave", topics=[TOPIC], group_instance_id="one")
        talk.until_shared(3, 3)


def _take_no_place(server: str, record: MemberRecord) -> None:
    """A process has the id of a static member that is there."""
    with _talk(server, record, "taken") as talk:
        talk.step("a static member joins")
        talk.start("frank", topics=[TOPIC], group_instance_id="one")
        talk.until_shared(6)
        talk.step("another process comes with its id")
        talk.start("grace", topics=[TOPIC], group_instance_id="one")
        refused = int(ErrorCode.UNRELEASED_INSTANCE_ID)
        talk.poll_until(lambda: record.refusals("grace") == {refused}, "the refusal")
        talk.step("the first process leaves for a while")
        talk.close("frank")
        talk.step("the other process takes its place")
        talk.until_shared(6)


def _match(server: str, record: MemberRecord) -> None:
    with _talk(server, record, "pattern") as talk, Admin(server) as admin:
        talk.step("a member subscribes by an expression")
        member = talk.start("heidi")
        member.subscribe(pattern="conversations.*")
        talk.until_shared(6)
        talk.step("a topic that matches is made")
        admin.create_topics({LATER: 2})
        talk.until_shared(8)
        talk.step("it subscribes to a name")
        member.subscribe([LATER])
        talk.until_shared(2)


def _be_late(server: str, record: MemberRecord) -> None:
    with _talk(server, record, "late") as talk:
        talk.step("a member joins")
        talk.start("ivan", topics=[TOPIC], max_poll_interval_ms=_OVERDUE_MS)
        talk.until_shared(6)
        talk.step("it is not polled, and leaves")
        wait_until(lambda: record.has("ivan", member_epoch=_LEAVING), "the member leaves")
        talk.step("it is polled, and is back")
        talk.until_shared(6)


def _work_by_key(server: str, record: MemberRecord) -> None:
    record.step = "keyed: a member works on all records and stops"
    consumer = KeyedConsumer(
        server,
        group="keyed",
        topics=[TOPIC],
        client_id="judy",
        group_protocol="consumer",
        auto_commit_interval_ms=_NEVER_MS,
    )
    done: list[int] = []

    def handle(item: KeyedRecord) -> None:
        done.append(item.offset)
        if len(done) == RECORDS:
            consumer.stop()

    consumer.run(handle, concurrency=1)
    consumer.close()
