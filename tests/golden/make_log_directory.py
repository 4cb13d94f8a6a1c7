"""Makes tests/golden/log_directory: the files that a node writes, small, with something of every kind in them.

    python tests/golden/make_log_directory.py
    PYTHONPATH=tests python tests/interop/tools/test_kafka_dump_log.py

The second line has Apache Kafka's own tool print them anew, into tests/golden/dump_log. Review both diffs: stored files
of another form are another format. Only compressed bytes may differ with the libraries.
"""

import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from tailrace.coordinators.groups import records
from tailrace.model.topic_config import TopicConfig
from tailrace.protocol.messages.consumer_protocol import (
    ConsumerProtocolAssignment,
    ConsumerProtocolSubscription,
    ConsumerTopicPartitions,
)
from tailrace.protocol.records.batch import read_header
from tailrace.protocol.records.compression import Codec
from tailrace.protocol.records.control import (
    ControlType,
    ControlValue,
    EndTransactionMarker,
    KRaftVersionFeature,
    KRaftVersionRecord,
    LeaderChangeMessage,
    LeaderChangeVoter,
    RecordedVoter,
    SnapshotFooterRecord,
    SnapshotHeaderRecord,
    VoterEndpoint,
    VotersRecord,
    build_control_batch,
    build_marker,
)
from tailrace.protocol.records.record import Record, build_batch
from tailrace.protocol.schema import encode_prefixed
from tailrace.storage import AppendBatch, Log, OsFiles

GOLDEN = Path(__file__).parent
DIRECTORY = GOLDEN / "log_directory"
CONFIG = TopicConfig(segment_bytes=2500, index_interval_bytes=300)
START_MS = 1_700_000_000_000
DIRECTORY_ID = bytes(range(16))

RECORDS = [
    Record(0, START_MS, b"key", b"value"),
    Record(0, START_MS + 7, None, b"a value without a key"),
    Record(0, START_MS + 3, b"tombstone", None),
    Record(0, START_MS + 3, None, None),
    Record(0, START_MS + 4, b"", b"", (("trace", b"\0\xff"), ("empty", b""), ("null", None), ("trace", b"again"))),
    Record(0, START_MS + 5, "clé".encode(), "два\tслова 🙂".encode()),
    Record(0, START_MS + 6, b"no text", b"\xff\xfe \x80"),
]


def batches_of_users() -> Iterator[bytes | bytearray]:
    """Batches in every codec, idempotent, transactional, stamped on arrival."""
    for number in range(15):
        offset = number * len(RECORDS)
        later = [record._replace(timestamp=record.timestamp + 1000 * number) for record in RECORDS]
        yield build_batch(
            later,
            codec=list(Codec)[number % 5],
            base_offset=offset,
            leader_epoch=number // 6,
            producer_id=7 + number % 2 if number % 3 else -1,
            producer_epoch=number % 2 if number % 3 else -1,
            base_sequence=number // 2 * len(RECORDS) if number % 3 else -1,
            log_append_time=START_MS + 1000 * number + 500 if number == 9 else None,
        )
    offset = 15 * len(RECORDS)
    for at, kind in enumerate((ControlType.COMMIT, ControlType.ABORT)):
        transaction: dict[str, Any] = {"producer_id": 9, "producer_epoch": at}
        yield build_batch(
            [Record(0, START_MS + 20_000 + at, b"paid", b"12.50")],
            base_offset=offset + 2 * at,
            leader_epoch=2,
            base_sequence=0,
            is_transactional=True,
            **transaction,
        )
        marker = EndTransactionMarker(kind, 3)
        yield build_marker(
            marker, timestamp=START_MS + 20_010, base_offset=offset + 2 * at + 1, leader_epoch=2, **transaction
        )
    yield build_batch(
        [Record(0, START_MS + 30_000, b"paid", b"still open")],
        base_offset=offset + 4,
        leader_epoch=2,
        producer_id=10,
        producer_epoch=0,
        base_sequence=2**31 - 1,
        is_transactional=True,
    )


def hex_lines(name: str) -> list[tuple[str, bytes]]:
    """The names and bytes of a golden text file beside this module."""
    lines = (GOLDEN / name).read_text().splitlines()
    return [(line.split()[0], bytes.fromhex(line.split()[1])) for line in lines if not line.startswith("#")]


def group_records() -> list[Record]:
    """Offsets and groups in every version of the format, what members of a group of consumers say, tombstones."""
    stored = dict(hex_lines("group_records.txt"))
    offset_key, group_key = stored.pop("offset_key"), stored.pop("group_key")
    keyed: list[tuple[bytes, bytes | None]]
    keyed = [(offset_key if name.startswith("offset") else group_key, value) for name, value in stored.items()]
    keyed += [members_of_a_group(), (offset_key, None), (group_key, None), (b"\0\x63what", b"\0\0else")]
    return [Record(0, START_MS + at, key, value) for at, (key, value) in enumerate(keyed)]


def members_of_a_group() -> tuple[bytes, bytes | None]:
    owned = ConsumerTopicPartitions(topic="orders", partitions=(0, 2))
    members = []
    for version in range(4):
        wanted = ConsumerProtocolSubscription(
            topics=("orders", "flights"),
            user_data=b"\1\2\xff" if version % 2 else None,
            owned_partitions=(owned,),
            generation_id=6,
            rack_id="rack-a",
        )
        given = ConsumerProtocolAssignment(assigned_partitions=(owned,))
        members.append(
            records.MemberMetadata(
                member_id=f"c-{version}",
                client_id="c",
                client_host="/127.0.0.1",
                rebalance_timeout=300_000,
                session_timeout=45_000,
                subscription=encode_prefixed(wanted, version),
                assignment=encode_prefixed(given, version),
            )
        )
    group = records.GroupMetadataValue(
        protocol_type="consumer",
        generation=7,
        protocol="range",
        leader="c-0",
        current_state_timestamp=START_MS,
        members=tuple(members),
    )
    return records.encode_record(records.GroupRecord(group_id='a "group"\n\x1f\\u001f', value=group))


def metadata_batches() -> Iterator[bytes | bytearray]:
    voters = (LeaderChangeVoter(voter_id=1), LeaderChangeVoter(voter_id=2))
    elected = LeaderChangeMessage(leader_id=1, voters=voters, granting_voters=voters[:1])
    yield build_control_batch([elected], timestamp=START_MS, leader_epoch=1)
    stored = [Record(0, START_MS, None, value) for _, value in hex_lines("metadata_records.txt")]
    yield build_batch(stored, base_offset=1, leader_epoch=1)


def snapshot() -> bytes:
    """Head, voters, one record and foot, as in KIP-630 and KIP-853."""
    voter = RecordedVoter(
        voter_id=1,
        voter_directory_id=DIRECTORY_ID,
        endpoints=(VoterEndpoint(name="CONTROLLER", host="127.0.0.1", port=59093),),
        k_raft_version_feature=KRaftVersionFeature(min_supported_version=0, max_supported_version=1),
    )
    head: list[ControlValue] = [
        SnapshotHeaderRecord(last_contained_log_timestamp=START_MS),
        KRaftVersionRecord(k_raft_version=1),
        VotersRecord(voters=(voter,)),
    ]
    topic = dict(hex_lines("metadata_records.txt"))["topic-0"]
    return b"".join(
        (
            build_control_batch(head, timestamp=START_MS, leader_epoch=1),
            build_batch([Record(0, START_MS, None, topic)], base_offset=3, leader_epoch=1),
            build_control_batch([SnapshotFooterRecord()], timestamp=START_MS, base_offset=4, leader_epoch=1),
        )
    )


def write_log(name: str, batches: Iterable[bytes | bytearray]) -> None:
    log = Log.open(str(DIRECTORY / name), files=OsFiles(), config=CONFIG, now_ms=START_MS)
    for batch in batches:
        log.append([AppendBatch(batch, read_header(batch))])
    log.close()


def main() -> None:
    shutil.rmtree(DIRECTORY, ignore_errors=True)
    write_log("orders-0", batches_of_users())
    write_log("__consumer_offsets-0", [build_batch(group_records(), leader_epoch=0)])
    write_log("__cluster_metadata-0", metadata_batches())
    (DIRECTORY / "__cluster_metadata-0" / "00000000000000000005-0000000001.checkpoint").write_bytes(snapshot())


if __name__ == "__main__":
    main()
