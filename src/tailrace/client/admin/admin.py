"""Administration of a cluster, of Tailrace or of Apache Kafka."""

import inspect
from collections.abc import Callable, Coroutine
from functools import wraps
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar

from tailrace.client.construction import StartableClient, made_of
from tailrace.client.hints.call_hints import hinted, hinted_call, marked_coroutine
from tailrace.client.late_methods import LateModule, late_method
from tailrace.client.router import Router
from tailrace.client.settings import ClientSettings

if TYPE_CHECKING:
    from tailrace.client import offsets, users
    from tailrace.client.admin import (
        cluster,
        configs,
        eligible_leaders,
        fetch_sessions,
        first_records,
        group_health,
        group_listings,
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
    from tailrace.client.admin import sinks as described_sinks
    from tailrace.client.admin.access import acls, quotas
    from tailrace.client.group import described_groups
    from tailrace.client.transactions import sinks
else:
    offsets = LateModule("tailrace.client.offsets")
    described_groups = LateModule("tailrace.client.group.described_groups")
    sinks = LateModule("tailrace.client.transactions.sinks")
    acls = LateModule("tailrace.client.admin.access.acls")
    cluster = LateModule("tailrace.client.admin.cluster")
    configs = LateModule("tailrace.client.admin.configs")
    described_sinks = LateModule("tailrace.client.admin.sinks")
    eligible_leaders = LateModule("tailrace.client.admin.eligible_leaders")
    fetch_sessions = LateModule("tailrace.client.admin.fetch_sessions")
    first_records = LateModule("tailrace.client.admin.first_records")
    group_health = LateModule("tailrace.client.admin.group_health")
    group_listings = LateModule("tailrace.client.admin.group_listings")
    group_moves = LateModule("tailrace.client.admin.group_moves")
    groups = LateModule("tailrace.client.admin.groups")
    log_dirs = LateModule("tailrace.client.admin.log_dirs")
    offset_resets = LateModule("tailrace.client.admin.offset_resets")
    quorum = LateModule("tailrace.client.admin.quorum")
    quotas = LateModule("tailrace.client.admin.access.quotas")
    replicas = LateModule("tailrace.client.admin.replicas")
    topics = LateModule("tailrace.client.admin.topics")
    transactions = LateModule("tailrace.client.admin.transactions")
    unclean_elections = LateModule("tailrace.client.admin.unclean_elections")
    users = LateModule("tailrace.client.users")

P = ParamSpec("P")
R = TypeVar("R")


def _method(
    function: Callable[[], Callable[Concatenate[Router, P], Coroutine[Any, Any, R]]],
) -> Callable[Concatenate["AsyncAdmin", P], Coroutine[Any, Any, R]]:
    """The function as a method of the client: it is called with the client's router."""
    return late_method(lambda: _with_router(function()))


def _with_router(
    function: Callable[Concatenate[Router, P], Coroutine[Any, Any, R]],
) -> Callable[Concatenate["AsyncAdmin", P], Coroutine[Any, Any, R]]:
    @wraps(function)
    def method(admin: "AsyncAdmin", /, *args: P.args, **kwargs: P.kwargs) -> Coroutine[Any, Any, R]:
        return function(admin._router, *args, **kwargs)

    signature = inspect.signature(function)
    _, *parameters = signature.parameters.values()
    own = inspect.Parameter("self", inspect.Parameter.POSITIONAL_OR_KEYWORD)
    vars(method)["__signature__"] = signature.replace(parameters=[own, *parameters])  # for help()
    return marked_coroutine(hinted_call(method, "Admin"))


@hinted
class AsyncAdmin(StartableClient[ClientSettings]):
    """An administrator's client. All calls retry what Kafka calls retriable, for default_api_timeout_ms at most.

    Each method is the function of its subject's module, called with the client's router. The module is imported when
    the method is first used.
    """

    @made_of(ClientSettings)
    def __init__(self, settings: ClientSettings) -> None:
        self._router = Router(settings)

    async def close(self) -> None:
        """Finish and close the connections."""
        self._router.close()

    create_topics = _method(lambda: topics.create_topics)
    delete_topics = _method(lambda: topics.delete_topics)
    create_partitions = _method(lambda: topics.create_partitions)
    delete_records = _method(lambda: topics.delete_records)
    list_topics = _method(lambda: topics.list_topics)
    describe_topics = _method(lambda: topics.describe_topics)
    existing_topics = _method(lambda: topics.existing_topics)
    topic_partitions = _method(lambda: topics.topic_partitions)
    describe_eligible_leaders = _method(lambda: eligible_leaders.describe_eligible_leaders)
    list_offsets = _method(lambda: offsets.list_offsets)

    describe_cluster = _method(lambda: cluster.describe_cluster)
    list_brokers = _method(lambda: cluster.list_brokers)
    unregister_broker = _method(lambda: cluster.unregister_broker)
    describe_features = _method(lambda: cluster.describe_features)
    update_features = _method(lambda: cluster.update_features)

    describe_configs = _method(lambda: configs.describe_configs)
    describe_topic_configs = _method(lambda: configs.describe_topic_configs)
    alter_configs = _method(lambda: configs.alter_configs)

    describe_log_dirs = _method(lambda: log_dirs.describe_log_dirs)
    describe_replica_logs = _method(lambda: log_dirs.describe_replica_logs)
    describe_fetch_sessions = _method(lambda: fetch_sessions.describe_fetch_sessions)

    list_users = _method(lambda: users.list_users)
    set_password = _method(lambda: users.set_password)
    delete_password = _method(lambda: users.delete_password)

    list_transactions = _method(lambda: transactions.list_transactions)
    describe_transaction = _method(lambda: transactions.describe_transaction)
    abort_transaction = _method(lambda: transactions.abort_transaction)

    check_sinks_are_supported = _method(lambda: sinks.check_sinks_are_supported)
    initialize_sink_member = _method(lambda: sinks.initialize_sink_member)
    write_sink_records = _method(lambda: sinks.write_sink_records)
    abort_sink_member = _method(lambda: sinks.abort_sink_member)
    commit_sink = _method(lambda: sinks.commit_sink)
    renew_sink_run = _method(lambda: sinks.renew_sink_run)
    describe_sinks = _method(lambda: described_sinks.describe_sinks)

    describe_acls = _method(lambda: acls.describe_acls)
    create_acls = _method(lambda: acls.create_acls)
    delete_acls = _method(lambda: acls.delete_acls)

    describe_client_quotas = _method(lambda: quotas.describe_client_quotas)
    alter_client_quotas = _method(lambda: quotas.alter_client_quotas)

    describe_quorum = _method(lambda: quorum.describe_quorum)
    add_voter = _method(lambda: quorum.add_voter)
    remove_voter = _method(lambda: quorum.remove_voter)

    elect_leaders = _method(lambda: replicas.elect_leaders)
    alter_partition_reassignments = _method(lambda: replicas.alter_partition_reassignments)
    list_partition_reassignments = _method(lambda: replicas.list_partition_reassignments)
    replication_factors = _method(lambda: replicas.replication_factors)
    describe_leaderless = _method(lambda: unclean_elections.describe_leaderless)

    list_groups = _method(lambda: group_listings.list_groups)
    describe_groups = _method(lambda: described_groups.describe_groups)
    delete_groups = _method(lambda: groups.delete_groups)
    group_offsets = _method(lambda: groups.group_offsets)
    group_progress = _method(lambda: groups.group_progress)
    commit_offsets = _method(lambda: groups.commit_offsets)
    delete_offsets = _method(lambda: groups.delete_offsets)
    reset_offsets = _method(lambda: offset_resets.reset_offsets)
    move_group = _method(lambda: group_moves.move_group)
    group_lag = _method(lambda: groups.group_lag)
    partition_health = _method(lambda: group_health.partition_health)
    first_records = _method(lambda: first_records.first_records)
