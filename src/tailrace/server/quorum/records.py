"""The quorum's control records: from the Raft machine's values to Kafka's messages, and back."""

from collections.abc import Iterable

from tailrace.model.errors import CorruptRecords
from tailrace.protocol.primitives import Buffer
from tailrace.protocol.records.control import (
    ControlValue,
    KRaftVersionFeature,
    KRaftVersionRecord,
    LeaderChangeMessage,
    LeaderChangeVoter,
    VoterEndpoint,
    VotersRecord,
    control_values,
)
from tailrace.protocol.records.control import RecordedVoter as VoterFields
from tailrace.protocol.records.record import read_records
from tailrace.raft.effects import ControlRecord, KRaftVersion, LeaderChange, Voters
from tailrace.raft.voters import ReplicaKey, Voter, VoterListener, VotersAt, VoterSet
from tailrace.storage.snapshots.format import HeaderControl


def control_value(record: ControlRecord) -> ControlValue:
    """The message of this record."""
    match record:
        case LeaderChange(leader_id, voters, granting_voters):
            # Version 1 has directories, but Kafka 4.1 does not write version 1, and fails when it reads version 1.
            return LeaderChangeMessage(
                version=0,
                leader_id=leader_id,
                voters=_change_voters(voters),
                granting_voters=_change_voters(granting_voters),
            )
        case KRaftVersion(version):
            return KRaftVersionRecord(k_raft_version=version)
        case Voters(voter_set):
            return voters_record(voter_set)


def _change_voters(keys: Iterable[ReplicaKey]) -> tuple[LeaderChangeVoter, ...]:
    return tuple(LeaderChangeVoter(voter_id=key.id, voter_directory_id=key.directory_id) for key in keys)


def voters_record(voters: VoterSet) -> VotersRecord:
    """Kafka's record of a set of voters."""
    return VotersRecord(
        voters=tuple(
            VoterFields(
                voter_id=voter.key.id,
                voter_directory_id=voter.key.directory_id,
                endpoints=tuple(VoterEndpoint(name=e.name, host=e.host, port=e.port) for e in voter.endpoints),
                k_raft_version_feature=KRaftVersionFeature(
                    min_supported_version=voter.min_kraft_version, max_supported_version=voter.max_kraft_version
                ),
            )
            for voter in voters
        )
    )


def voter_set(record: VotersRecord) -> VoterSet:
    """The set of voters in a record. Raises CorruptRecords if the record has an id twice."""
    ids = [voter.voter_id for voter in record.voters]
    if len(set(ids)) < len(ids):
        raise CorruptRecords(f"a record of voters names one twice: {ids}")
    return VoterSet.of(_voter(fields) for fields in record.voters)


def _voter(fields: VoterFields) -> Voter:
    return Voter(
        ReplicaKey(fields.voter_id, bytes(fields.voter_directory_id)),
        tuple(VoterListener(e.name, e.host, e.port) for e in fields.endpoints),
        fields.k_raft_version_feature.min_supported_version,
        fields.k_raft_version_feature.max_supported_version,
    )


def snapshot_control(voters: VoterSet | None) -> tuple[HeaderControl, ...]:
    """The control records of the voters in a snapshot's header; empty if the log states no voters (kraft.version 0)."""
    return () if voters is None else (KRaftVersionRecord(k_raft_version=1), voters_record(voters))


def voters_of_snapshot(control: Iterable[HeaderControl]) -> VoterSet | None:
    """The voters in a snapshot's header; None for a header without voters. Raises CorruptRecords."""
    stated = [voter_set(value) for value in control if isinstance(value, VotersRecord)]
    return stated[-1] if stated else None


def voters_of_batch(buffer: Buffer, position: int = 0) -> list[VotersAt]:
    """The sets of voters in the control batch that starts at this position. Raises CorruptRecords."""
    return [
        VotersAt(record.offset, voter_set(value))
        for record in read_records(buffer, position)
        for value in control_values([record])
        if isinstance(value, VotersRecord)
    ]
