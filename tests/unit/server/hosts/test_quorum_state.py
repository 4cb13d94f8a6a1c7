"""The quorum-state file is Kafka's."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.model.errors import CorruptRecords
from tailrace.model.ids import BrokerId
from tailrace.server.hosts.quorum_state import QuorumState, format_quorum_state, parse_quorum_state

ids = st.integers(-1, 2**31 - 1).map(BrokerId)
states = st.builds(
    QuorumState,
    leader_id=ids,
    leader_epoch=st.integers(0, 2**31 - 1),
    voted_id=ids,
    voters=st.lists(ids, max_size=3).map(tuple),
)


@given(states)
def test_a_state_survives_the_file(state: QuorumState) -> None:
    assert parse_quorum_state(format_quorum_state(state), path="p") == state


def test_the_file_is_kafkas_version_0() -> None:
    state = QuorumState(leader_id=BrokerId(1), leader_epoch=5, voted_id=BrokerId(-1), voters=(BrokerId(1),))
    assert format_quorum_state(state) == (
        b'{"clusterId":"","leaderId":1,"leaderEpoch":5,"votedId":-1,"appliedOffset":0,'
        b'"currentVoters":[{"voterId":1}],"data_version":0}'
    )


@pytest.mark.parametrize("content", [b"", b"{}", b"[]", b'{"data_version":1}', b'{"data_version":0}', b"\xff", b"null"])
def test_anything_else_is_refused_with_the_files_name(content: bytes) -> None:
    with pytest.raises(CorruptRecords, match="there/quorum-state"):
        parse_quorum_state(content, path="there/quorum-state")
