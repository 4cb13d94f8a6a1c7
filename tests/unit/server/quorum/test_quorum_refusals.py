"""Answers of a broken leader that a replica refuses: the node logs them, and they do not fill its log."""

import logging
from collections.abc import Callable
from typing import Any

import pytest

from tailrace.model.ids import METADATA_TOPIC_ID
from tailrace.model.machines import Tick
from tailrace.model.partitions import METADATA_PARTITION
from tailrace.model.topic_config import TopicConfig
from tailrace.protocol.messages import fetch
from tailrace.raft import effects as do
from tailrace.raft import events
from tailrace.raft.node import RaftNode
from tailrace.raft.ports import RaftConfig
from tailrace.raft.rpc import FetchRecords
from tailrace.raft.voters import ReplicaKey, Voter, VoterSet
from tailrace.server.quorum.host import QuorumHost, read_quorum_state
from tailrace.server.quorum.log import QuorumLog
from tailrace.server.quorum.metadata_directory import MetadataDirectory
from tailrace.testing.clock import ManualClock
from tailrace.testing.disk import SimulatedDisk
from testkit.nodes.ports import DeferredDisk

KEY, LEADER = ReplicaKey(1), ReplicaKey(2)


def half_a_snapshot_id(epoch: int) -> fetch.FetchResponse:
    """An answer that names a snapshot by its epoch alone."""
    part = fetch.PartitionData(
        partition_index=0,
        error_code=0,
        high_watermark=2,
        last_stable_offset=2,
        log_start_offset=7,
        current_leader=fetch.LeaderIdAndEpoch(leader_id=LEADER.id, leader_epoch=5),
        snapshot_id=fetch.WireSnapshotId(end_offset=-1, epoch=epoch),
        aborted_transactions=None,
        records=b"",
    )
    topic = fetch.FetchableTopicResponse(topic="__cluster_metadata", topic_id=METADATA_TOPIC_ID, partitions=(part,))
    return fetch.FetchResponse(responses=(topic,))


class BrokenLeader:
    """A `server.ports.Peer` that names half a snapshot, of another epoch each time."""

    def __init__(self) -> None:
        self.answers = 0

    def send(self, node_id: int, request: Any, on_reply: Callable[[Any], None], **_: object) -> None:
        self.answers += 1
        on_reply(half_a_snapshot_id(self.answers))


def raise_fault(fault: Exception) -> None:
    raise fault


class RefusalsBench:
    """The host of a replica; the test plays the machine."""

    def __init__(self) -> None:
        files = SimulatedDisk()
        directory = MetadataDirectory("/data", files=files)
        self.clock = ManualClock()
        log = QuorumLog.open(directory.path, METADATA_PARTITION, files=files, config=TopicConfig(), now_ms=0)
        self.host = QuorumHost(
            node=RaftNode(
                key=KEY,
                cluster_id=None,
                log=log,
                state=read_quorum_state(directory),
                initial_voters=VoterSet.of((Voter(KEY), Voter(LEADER))),
                voters_in_log=(),
                bootstrap_ids=(),
                config=RaftConfig(),
                jitter=lambda: 0.5,
                now_ms=0,
            ),
            cluster_id=None,
            log=log,
            directory=directory,
            listeners=(),
            clock=self.clock,
            disk=DeferredDisk(),
            peer=BrokenLeader(),
            on_storage_failed=raise_fault,
            on_broken_step=raise_fault,
        )
        self.outcomes: list[events.Event] = []
        self._effects: list[do.Effect] = []
        self.host.node.step = self._step  # type: ignore[method-assign]

    def _step(self, event: events.Event, now_ms: int) -> list[do.Effect]:
        if not isinstance(event, Tick):
            self.outcomes.append(event)
        effects, self._effects = self._effects, []
        return effects

    def carry_out(self, effect: do.Effect) -> None:
        self._effects = [effect]
        self.host.step(Tick())


def ask() -> do.Effect:
    request = FetchRecords(
        cluster_id=None, replica=KEY, leader_epoch=5, fetch_offset=0, last_fetched_epoch=0, max_wait_ms=500
    )
    return do.SendRequest(1, LEADER.id, request)


def append_torn() -> do.Effect:
    return do.AppendFetched(0, 5, b"torn")


@pytest.mark.parametrize(
    ("effect", "event", "outcome"),
    [
        (ask, "quorum-answer-ignored", events.RequestFailed),
        (append_torn, "fetched-metadata-refused", events.AppendRejected),
    ],
)
def test_a_leader_that_gives_the_same_useless_answer_again_and_again_has_a_line_a_minute(
    effect: Callable[[], do.Effect], event: str, outcome: type, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, logger="tailrace.server")
    replica = RefusalsBench()
    for _ in range(50):
        replica.carry_out(effect())
    assert [type(result) for result in replica.outcomes] == [outcome] * 50
    assert caplog.text.count(f"event={event} ") == 1
    replica.clock.advance(60_000)
    replica.carry_out(effect())
    assert caplog.text.count(f"event={event} ") == 2


def test_another_reason_has_a_line_of_its_own_at_once(caplog: pytest.LogCaptureFixture) -> None:
    replica = RefusalsBench()
    replica.carry_out(append_torn())
    replica.carry_out(do.AppendFetched(0, 5, b"\0" * 100))
    replica.carry_out(ask())
    assert caplog.text.count("event=fetched-metadata-refused ") == 2
    assert caplog.text.count("event=quorum-answer-ignored ") == 1
