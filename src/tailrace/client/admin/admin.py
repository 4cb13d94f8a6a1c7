"""Administration of a cluster, of Tailrace or of Apache Kafka."""

import inspect
from collections.abc import Callable, Coroutine
from functools import wraps
from typing import Any, Concatenate, ParamSpec, TypeVar

from tailrace.client import offsets
from tailrace.client.admin import (
    cluster,
    configs,
    eligible_leaders,
    fetch_sessions,
    first_records,
    group_health,
    group_moves,
    groups,
    log_dirs,
    offset_resets,
    quorum,
    replicas,
    topics,
    transactions,
    unclean_elections,
)
from tailrace.client.admin.sinks import describe_sinks
from tailrace.client.construction import StartableClient, made_of
from tailrace.client.group import described_groups
from tailrace.client.router import Router
from tailrace.client.settings import ClientSettings
from tailrace.client.transactions import sinks

P = ParamSpec("P")
R = TypeVar("R")


def _method(
    function: Callable[Concatenate[Router, P], Coroutine[Any, Any, R]],
) -> Callable[Concatenate["AsyncAdmin", P], Coroutine[Any, Any, R]]:
    """The function as a method of the client: it is called with the client's router."""

    @wraps(function)
    async def method(admin: "AsyncAdmin", /, *args: P.args, **kwargs: P.kwargs) -> R:
        return await function(admin._router, *args, **kwargs)

    signature = inspect.signature(function)
    _, *parameters = signature.parameters.values()
    own = inspect.Parameter("self", inspect.Parameter.POSITIONAL_OR_KEYWORD)
    vars(method)["__signature__"] = signature.replace(parameters=[own, *parameters])  # for help()
    return method


class AsyncAdmin(StartableClient[ClientSettings]):
    """An administrator's client. All calls retry what Kafka calls retriable, for default_api_timeout_ms at most.

    Each method is the function of its subject's module, called with the client's router.
    """

    @made_of(ClientSettings)
    def __init__(self, settings: ClientSettings) -> None:
        self._router = Router(settings)

    async def close(self) -> None:
        """Finish and close the connections."""
        self._router.close()

    create_topics = _method(topics.create_topics)
    delete_topics = _method(topics.delete_topics)
    create_partitions = _method(topics.create_partitions)
    delete_records = _method(topics.delete_records)
    list_topics = _method(topics.list_topics)
    describe_topics = _method(topics.describe_topics)
    existing_topics = _method(topics.existing_topics)
    topic_partitions = _method(topics.topic_partitions)
    describe_eligible_leaders = _method(eligible_leaders.describe_eligible_leaders)
    list_offsets = _method(offsets.list_offsets)

    describe_cluster = _method(cluster.describe_cluster)
    list_brokers = _method(cluster.list_brokers)
    unregister_broker = _method(cluster.unregister_broker)
    describe_features = _method(cluster.describe_features)
    update_features = _method(cluster.update_features)

    describe_configs = _method(configs.describe_configs)
    describe_topic_configs = _method(configs.describe_topic_configs)
    alter_configs = _method(configs.alter_configs)

    describe_log_dirs = _method(log_dirs.describe_log_dirs)
    describe_replica_logs = _method(log_dirs.describe_replica_logs)
    describe_fetch_sessions = _method(fetch_sessions.describe_fetch_sessions)

    list_transactions = _method(transactions.list_transactions)
    describe_transaction = _method(transactions.describe_transaction)
    abort_transaction = _method(transactions.abort_transaction)

    check_sinks_are_supported = _method(sinks.check_sinks_are_supported)
    initialize_sink_member = _method(sinks.initialize_sink_member)
    write_sink_records = _method(sinks.write_sink_records)
    abort_sink_member = _method(sinks.abort_sink_member)
    commit_sink = _method(sinks.commit_sink)
    renew_sink_run = _method(sinks.renew_sink_run)
    describe_sinks = _method(describe_sinks)

    describe_quorum = _method(quorum.describe_quorum)
    add_voter = _method(quorum.add_voter)
    remove_voter = _method(quorum.remove_voter)

    elect_leaders = _method(replicas.elect_leaders)
    alter_partition_reassignments = _method(replicas.alter_partition_reassignments)
    list_partition_reassignments = _method(replicas.list_partition_reassignments)
    replication_factors = _method(replicas.replication_factors)
    describe_leaderless = _method(unclean_elections.describe_leaderless)

    list_groups = _method(groups.list_groups)
    describe_groups = _method(described_groups.describe_groups)
    delete_groups = _method(groups.delete_groups)
    group_offsets = _method(groups.group_offsets)
    group_progress = _method(groups.group_progress)
    commit_offsets = _method(groups.commit_offsets)
    delete_offsets = _method(groups.delete_offsets)
    reset_offsets = _method(offset_resets.reset_offsets)
    move_group = _method(group_moves.move_group)
    group_lag = _method(groups.group_lag)
    partition_health = _method(group_health.partition_health)
    first_records = _method(first_records.first_records)
