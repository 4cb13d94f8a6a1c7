"""The warning of a node whose directory is not the directory that the quorum's voters name."""

import pytest

from tailrace.model.ids import format_topic_id
from tailrace.node.founding import warn_if_wiped
from tailrace.raft.voters import ReplicaKey, Voter, VoterSet

LOST, NEW = b"the-lost-one-000", b"the-new-one-0000"


def test_directory_ids_are_logged_as_every_command_prints_them(caplog: pytest.LogCaptureFixture) -> None:
    voters = VoterSet.of((Voter(ReplicaKey(3, LOST)),))
    warn_if_wiped(ReplicaKey(3, NEW), voters)
    (line,) = (record.getMessage() for record in caplog.records)
    lost, new = format_topic_id(LOST), format_topic_id(NEW)
    assert f"votes-in={lost} has={new} " in line
    assert f"tailrace quorum remove-controller --controller-id 3 --controller-directory-id {lost}," in line
    assert str(ReplicaKey(3, NEW)) == f"3 ({new})"
    caplog.clear()
    warn_if_wiped(ReplicaKey(3, LOST), voters)
    assert not caplog.records
