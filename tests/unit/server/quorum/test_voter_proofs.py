"""Requests of the Raft protocol in the name of voters, by a client that knows all that the metadata log says."""

from dataclasses import dataclass
from typing import Any

import pytest

from simulation.quorum.cluster import QuorumCluster, QuorumPlan
from simulation.quorum.node import QuorumNode
from tailrace.model.errors import ErrorCode, KafkaError
from tailrace.model.proofs import NO_SECRET
from tailrace.raft.rpc import BeginEpoch, EndEpoch, FetchRecords, FetchSnapshot, Request, SnapshotId, Vote
from tailrace.raft.voters import ReplicaKey
from tailrace.server.quorum.raft_rpcs import check_key, check_sender

pytestmark = pytest.mark.usefixtures("quiet")


STRANGER = ReplicaKey(9, b"a new directory.")


@dataclass
class VoterProofsBench:
    """Three voters at rest, and two of them."""

    cluster: QuorumCluster
    leader: QuorumNode
    follower: QuorumNode

    def requests(self, key: ReplicaKey) -> list[Request]:
        epoch = self.leader.host.node.epoch
        common: dict[str, Any] = {"cluster_id": None}
        return [
            Vote(
                **common,
                candidate_epoch=epoch + 1,
                candidate=key,
                voter=None,
                last_epoch=epoch,
                last_offset=1 << 40,
                pre_vote=False,
            ),
            BeginEpoch(**common, leader_id=key.id, leader_epoch=epoch + 1, voter=None),
            EndEpoch(**common, leader_id=key.id, leader_epoch=epoch + 1, preferred_candidates=()),
            FetchRecords(
                **common,
                replica=key,
                leader_epoch=epoch,
                fetch_offset=1,
                last_fetched_epoch=epoch,
                max_wait_ms=0,
                max_bytes=1,
                high_watermark=-1,
            ),
            FetchSnapshot(
                **common, replica=key, leader_epoch=epoch, snapshot_id=SnapshotId(1, 1), position=0, max_bytes=1
            ),
        ]


@pytest.fixture
def quorum() -> VoterProofsBench:
    cluster = QuorumCluster(1, QuorumPlan(commands_per_s=0, silences_per_s=0, chaos_ms=2000))
    cluster.run()
    leader = cluster.leader()
    assert leader is not None
    follower = next(node for node in cluster.nodes.values() if node is not leader and node.key.id <= 3)
    return VoterProofsBench(cluster, leader, follower)


def refused(node: QuorumNode, request: Request, secret: bytes) -> bool:
    try:
        check_sender(node.host.node, request, secret)
    except KafkaError as error:
        assert error.code is ErrorCode.CLUSTER_AUTHORIZATION_FAILED
        return True
    return False


def test_no_request_passes_in_the_name_of_a_voter_without_the_secret_of_its_directory(quorum: VoterProofsBench) -> None:
    victim = quorum.follower
    for node in (quorum.leader, victim):
        for request in quorum.requests(victim.key):
            for secret in (NO_SECRET, victim.key.directory_id, quorum.leader.directory_secret):
                assert refused(node, request, secret), request
            assert not refused(node, request, victim.directory_secret), request
    with pytest.raises(KafkaError, match="lacks the secret of replica"):
        check_key(victim.key, NO_SECRET)


def test_a_stranger_ends_no_epoch_while_there_is_a_leader(quorum: VoterProofsBench) -> None:
    """Nor does a client that names a voter, but another directory than the voter's, or no directory."""
    names = (STRANGER, ReplicaKey(quorum.follower.key.id), ReplicaKey(quorum.leader.key.id, b"another one....."))
    for node in (quorum.leader, quorum.follower):
        for name in names:
            vote, begin, end, *fetches = quorum.requests(name)
            assert refused(node, vote, NO_SECRET), name
            assert refused(node, begin, NO_SECRET), name
            assert refused(node, end, NO_SECRET), name
            assert [refused(node, fetch, NO_SECRET) for fetch in fetches] == [False, False], "an observer may read"


def test_a_voter_that_is_not_known_yet_is_heard_when_the_leader_is_gone(quorum: VoterProofsBench) -> None:
    """The voter's vote may be the missing vote, with two voters and a third that the lost leader has added."""
    world, node = quorum.cluster.world, quorum.follower
    for other in quorum.cluster.nodes.values():
        if other is not node:
            other.crash()
    vote = quorum.requests(STRANGER)[0]
    assert refused(node, vote, NO_SECRET), "it has not noticed yet"
    assert world.run(until_ms=world.now_ms + 20_000, stop=lambda: not refused(node, vote, NO_SECRET))


def test_directories_of_earlier_releases_need_no_secret() -> None:
    cluster = QuorumCluster(1, QuorumPlan(commands_per_s=0, silences_per_s=0, chaos_ms=2000, has_old_directories=True))
    cluster.run()
    leader = cluster.leader()
    assert leader is not None
    follower = next(node for node in cluster.nodes.values() if node is not leader and node.key.id <= 3)
    old = VoterProofsBench(cluster, leader, follower)
    assert not any(refused(leader, request, NO_SECRET) for request in old.requests(follower.key))
    assert not refused(leader, old.requests(STRANGER)[0], NO_SECRET), "and strangers are heard as before"
