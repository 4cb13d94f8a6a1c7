"""The whole script, and the settings with which both nodes run the script."""

from collections.abc import Mapping

from interop.differential.catalogue.administration.cluster import cluster
from interop.differential.catalogue.administration.configs import configs
from interop.differential.catalogue.administration.features import features
from interop.differential.catalogue.administration.replicas import replicas
from interop.differential.catalogue.administration.security import security
from interop.differential.catalogue.administration.topics import topics
from interop.differential.catalogue.groups.classic_groups import classic_groups
from interop.differential.catalogue.groups.consumer_groups import consumer_groups
from interop.differential.catalogue.groups.group_offsets import group_offsets
from interop.differential.catalogue.records.fetch import fetches
from interop.differential.catalogue.records.offsets import offsets
from interop.differential.catalogue.records.produce import produces
from interop.differential.catalogue.records.sessions import drawn_sessions, drawn_turns, sessions
from interop.differential.catalogue.seeded import seeded
from interop.differential.catalogue.transactions.transactions import everything, transactions
from interop.differential.script import Script

SETTINGS: Mapping[str, str] = {
    "auto.create.topics.enable": "false",
    "default.replication.factor": "1",
    "group.initial.rebalance.delay.ms": "0",
    "log.retention.ms": "-1",  # the records are from 2023
    "node.id": "1",
    "num.partitions": "2",
    "offsets.topic.num.partitions": "1",
    "offsets.topic.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    "transaction.state.log.num.partitions": "2",
    "transaction.state.log.replication.factor": "1",
}


def whole(seed: int) -> Script:
    """The fixed part, which is the same in every run, and what this seed draws."""
    yield from cluster()
    yield from offsets()
    yield from produces()
    yield from fetches()
    yield from sessions()
    yield from topics()
    yield from configs()
    yield from replicas()
    yield from features()
    yield from security()
    yield from classic_groups()
    yield from group_offsets()
    yield from consumer_groups()
    yield from seeded(seed)
    yield from drawn_sessions(seed)
    yield from drawn_turns(seed)
    yield from everything()
    yield from transactions()
