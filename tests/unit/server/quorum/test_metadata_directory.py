"""The quorum-state file is Kafka's."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.model.errors import CorruptRecords
from tailrace.model.ids import BrokerId
from tailrace.server.quorum.metadata_directory import StoredQuorumState, format_quorum_state, parse_quorum_state

ids = st.integers(-1, 2**31 - 1).map(BrokerId)
states = st.builds(
    StoredQuorumState,
    leader_id=ids,
    leader_epoch=st.integers(0, 2**31 - 1),
    voted_id=ids,
    voters=st.lists(ids, min_size=1, max_size=3).map(tuple),
) | st.builds(
    StoredQuorumState,
    leader_id=ids,
    leader_epoch=st.integers(0, 2**31 - 1),
    voted_id=ids,
    voted_directory_id=st.binary(min_size=16, max_size=16),
)


@given(states)
def test_a_state_survives_the_file(state: StoredQuorumState) -> None:
    assert parse_quorum_state(format_quorum_state(state), path="p") == state


def test_the_quorum_state_file_is_kafkas_version_0() -> None:
    state = StoredQuorumState(leader_id=BrokerId(1), leader_epoch=5, voted_id=BrokerId(-1), voters=(BrokerId(1),))
    assert format_quorum_state(state) == (
        b'{"clusterId":"","leaderId":1,"leaderEpoch":5,"votedId":-1,"appliedOffset":0,'
        b'"currentVoters":[{"voterId":1}],"data_version":0}'
    )


def test_the_quorum_state_file_is_kafkas_version_1_where_the_log_names_the_voters() -> None:
    state = StoredQuorumState(
        leader_id=BrokerId(-1), leader_epoch=5, voted_id=BrokerId(2), voted_directory_id=bytes(15) + b"\x01"
    )
    assert format_quorum_state(state) == (
        b'{"leaderId":-1,"leaderEpoch":5,"votedId":2,"votedDirectoryId":"AAAAAAAAAAAAAAAAAAAAAQ","data_version":1}'
    )


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{}",
        b"[]",
        b'{"data_version":1}',
        b'{"data_version":0}',
        b'{"leaderId":1,"leaderEpoch":1,"votedId":1,"votedDirectoryId":"AAAA","data_version":1}',
        b'{"leaderId":1,"leaderEpoch":1,"votedId":1,"votedDirectoryId":"?","data_version":1}',
        b'{"leaderId":1,"leaderEpoch":1,"votedId":1,"votedDirectoryId":null,"data_version":1}',
        b'{"data_version":2}',
        b"\xff",
        b"null",
        b'{"data_version":0,"leaderId":1e999}',
        pytest.param(b"[" * 100_000, id="deep"),
    ],
)
def test_anything_else_is_refused_with_the_files_name(content: bytes) -> None:
    with pytest.raises(CorruptRecords, match=r"there/quorum-state .* If the node is the only voter, remove the file;"):
        parse_quorum_state(content, path="there/quorum-state")
