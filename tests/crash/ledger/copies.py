"""The ledger in the files of stopped nodes: whether replicas are equal, and the epochs of transactions."""

from collections import defaultdict
from collections.abc import Iterable, Mapping

from crash.ledger.plan import END
from crash.replicas.copies import replica_log, stored_batches
from tailrace.protocol.records.record import read_records
from tailrace.testing import Cluster
from testkit.verdicts.ledger import Place, entry_of
from testkit.verdicts.replica_history import FinalLog, ReplicaHistory, ReplicaLog
from testkit.verdicts.replica_verdict import Evidence, divergences

_Identity = tuple[int, int]
"""A producer's id and epoch."""


def differences(cluster: Cluster, ends: Mapping[Place, int]) -> list[str]:
    """The differences between the copies of these partitions below their high watermarks."""
    replicas: dict[tuple[str, int], dict[int, ReplicaLog]] = {
        place: {
            node: replica_log(cluster.data_dir(node), place, is_compacted=False, text_of=str)
            for node in cluster.broker_ids
        }
        for place in ends
    }
    logs: dict[tuple[str, int], FinalLog] = {
        place: FinalLog(0, end, {}, {}, frozenset()) for place, end in ends.items()
    }
    return list(divergences(Evidence(history=ReplicaHistory(), logs=logs, replicas=replicas)))


def epochs_of(cluster: Cluster, places: Iterable[Place]) -> dict[str, tuple[int, int]]:
    """By client: the number of its transactions in the logs, aborted ones too, and of the epochs that they had.

    With transaction.version 2 each transaction has its own epoch (KIP-890), before that all of a life share an epoch,
    unless a failed transaction has raised it (KIP-360).
    """
    transactions: dict[str, set[str]] = defaultdict(set)
    identities: dict[str, set[_Identity]] = defaultdict(set)
    for place in places:
        for content, header in stored_batches(cluster.data_dir(cluster.broker_ids[0]), place):
            for record in () if header.is_control else read_records(content):
                if record.value is not None and record.value != END.encode():
                    name = entry_of(record.value).transaction
                    client, _, _ = name.rsplit("-", 2)
                    transactions[client].add(name)
                    identities[client].add((header.producer_id, header.producer_epoch))
    return {client: (len(names), len(identities[client])) for client, names in transactions.items()}
