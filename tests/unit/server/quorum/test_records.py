"""The Raft machine's values and Kafka's control records are converted into each other without a loss."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.model.errors import CorruptRecords
from tailrace.protocol.records.control import KRaftVersionRecord, LeaderChangeMessage, VotersRecord, build_control_batch
from tailrace.raft.effects import KRaftVersion, LeaderChange, Voters
from tailrace.raft.voters import ReplicaKey, Voter, VoterListener, VotersAt, VoterSet
from tailrace.server.quorum.records import (
    control_value,
    snapshot_control,
    voter_set,
    voters_of_batch,
    voters_of_snapshot,
    voters_record,
)

keys = st.builds(ReplicaKey, st.integers(0, 2**31 - 1), st.binary(min_size=16, max_size=16))
voters = st.builds(
    Voter,
    keys,
    st.lists(st.builds(VoterListener, st.text(max_size=9), st.text(max_size=9), st.integers(0, 65535)), max_size=2).map(
        tuple
    ),
    st.integers(0, 9),
    st.integers(0, 9),
)
voter_sets = st.lists(voters, max_size=5, unique_by=lambda voter: voter.key.id).map(VoterSet.of)


@given(voter_sets)
def test_a_set_of_voters_survives_log_and_snapshot(stated: VoterSet) -> None:
    assert voter_set(voters_record(stated)) == stated
    assert voters_of_snapshot(snapshot_control(stated)) == stated
    values = [control_value(KRaftVersion(1)), control_value(Voters(stated))]
    batch = build_control_batch(values, timestamp=0, base_offset=40)
    assert voters_of_batch(batch) == [VotersAt(41, stated)]


def test_a_snapshot_of_a_static_quorum_states_no_voters() -> None:
    assert snapshot_control(None) == ()
    assert voters_of_snapshot(()) is None
    assert voters_of_snapshot((KRaftVersionRecord(k_raft_version=1),)) is None


@pytest.mark.parametrize("directory", [bytes(16), b"d" * 16])
def test_a_change_of_leader_has_the_only_version_that_kafka_reads(directory: bytes) -> None:
    key = ReplicaKey(2, directory)
    value = control_value(LeaderChange(2, (key,), (key,)))
    assert isinstance(value, LeaderChangeMessage)
    assert (value.version, value.leader_id) == (0, 2)
    assert [voter.voter_id for voter in value.granting_voters] == [2]


def test_a_voter_that_is_named_twice_is_damage() -> None:
    record = voters_record(VoterSet.of([Voter(ReplicaKey(1)), Voter(ReplicaKey(2))]))
    twice = VotersRecord(voters=(record.voters[0], record.voters[0]))
    with pytest.raises(CorruptRecords, match="twice"):
        voter_set(twice)
