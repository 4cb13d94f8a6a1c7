"""The administrator's client without asyncio."""

from functools import partial

from tailrace.client.admin.admin import AsyncAdmin
from tailrace.client.construction import made_of
from tailrace.client.facade import Facade, blocking, face_of
from tailrace.client.late_methods import late_method
from tailrace.client.settings import ClientSettings


@face_of(AsyncAdmin)
class Admin(Facade[AsyncAdmin]):
    """See `tailrace.client.admin.admin.AsyncAdmin`."""

    @made_of(ClientSettings)
    def __init__(self, settings: ClientSettings) -> None:
        super().__init__(partial(AsyncAdmin.of, settings))

    create_topics = late_method(lambda: blocking(AsyncAdmin.create_topics))
    delete_topics = late_method(lambda: blocking(AsyncAdmin.delete_topics))
    create_partitions = late_method(lambda: blocking(AsyncAdmin.create_partitions))
    delete_records = late_method(lambda: blocking(AsyncAdmin.delete_records))
    list_topics = late_method(lambda: blocking(AsyncAdmin.list_topics))
    describe_topics = late_method(lambda: blocking(AsyncAdmin.describe_topics))
    existing_topics = late_method(lambda: blocking(AsyncAdmin.existing_topics))
    topic_partitions = late_method(lambda: blocking(AsyncAdmin.topic_partitions))
    describe_eligible_leaders = late_method(lambda: blocking(AsyncAdmin.describe_eligible_leaders))
    list_offsets = late_method(lambda: blocking(AsyncAdmin.list_offsets))

    describe_cluster = late_method(lambda: blocking(AsyncAdmin.describe_cluster))
    list_brokers = late_method(lambda: blocking(AsyncAdmin.list_brokers))
    unregister_broker = late_method(lambda: blocking(AsyncAdmin.unregister_broker))
    describe_features = late_method(lambda: blocking(AsyncAdmin.describe_features))
    update_features = late_method(lambda: blocking(AsyncAdmin.update_features))

    describe_configs = late_method(lambda: blocking(AsyncAdmin.describe_configs))
    describe_topic_configs = late_method(lambda: blocking(AsyncAdmin.describe_topic_configs))
    alter_configs = late_method(lambda: blocking(AsyncAdmin.alter_configs))

    describe_log_dirs = late_method(lambda: blocking(AsyncAdmin.describe_log_dirs))
    describe_replica_logs = late_method(lambda: blocking(AsyncAdmin.describe_replica_logs))
    describe_fetch_sessions = late_method(lambda: blocking(AsyncAdmin.describe_fetch_sessions))

    list_users = late_method(lambda: blocking(AsyncAdmin.list_users))
    set_password = late_method(lambda: blocking(AsyncAdmin.set_password))
    delete_password = late_method(lambda: blocking(AsyncAdmin.delete_password))

    list_transactions = late_method(lambda: blocking(AsyncAdmin.list_transactions))
    describe_transaction = late_method(lambda: blocking(AsyncAdmin.describe_transaction))
    abort_transaction = late_method(lambda: blocking(AsyncAdmin.abort_transaction))

    check_sinks_are_supported = late_method(lambda: blocking(AsyncAdmin.check_sinks_are_supported))
    initialize_sink_member = late_method(lambda: blocking(AsyncAdmin.initialize_sink_member))
    write_sink_records = late_method(lambda: blocking(AsyncAdmin.write_sink_records))
    abort_sink_member = late_method(lambda: blocking(AsyncAdmin.abort_sink_member))
    commit_sink = late_method(lambda: blocking(AsyncAdmin.commit_sink))
    renew_sink_run = late_method(lambda: blocking(AsyncAdmin.renew_sink_run))
    describe_sinks = late_method(lambda: blocking(AsyncAdmin.describe_sinks))

    describe_acls = late_method(lambda: blocking(AsyncAdmin.describe_acls))
    create_acls = late_method(lambda: blocking(AsyncAdmin.create_acls))
    delete_acls = late_method(lambda: blocking(AsyncAdmin.delete_acls))

    describe_client_quotas = late_method(lambda: blocking(AsyncAdmin.describe_client_quotas))
    alter_client_quotas = late_method(lambda: blocking(AsyncAdmin.alter_client_quotas))

    describe_quorum = late_method(lambda: blocking(AsyncAdmin.describe_quorum))
    add_voter = late_method(lambda: blocking(AsyncAdmin.add_voter))
    remove_voter = late_method(lambda: blocking(AsyncAdmin.remove_voter))

    elect_leaders = late_method(lambda: blocking(AsyncAdmin.elect_leaders))
    alter_partition_reassignments = late_method(lambda: blocking(AsyncAdmin.alter_partition_reassignments))
    list_partition_reassignments = late_method(lambda: blocking(AsyncAdmin.list_partition_reassignments))
    replication_factors = late_method(lambda: blocking(AsyncAdmin.replication_factors))
    describe_leaderless = late_method(lambda: blocking(AsyncAdmin.describe_leaderless))

    list_groups = late_method(lambda: blocking(AsyncAdmin.list_groups))
    describe_groups = late_method(lambda: blocking(AsyncAdmin.describe_groups))
    delete_groups = late_method(lambda: blocking(AsyncAdmin.delete_groups))
    group_offsets = late_method(lambda: blocking(AsyncAdmin.group_offsets))
    group_progress = late_method(lambda: blocking(AsyncAdmin.group_progress))
    delete_offsets = late_method(lambda: blocking(AsyncAdmin.delete_offsets))
    reset_offsets = late_method(lambda: blocking(AsyncAdmin.reset_offsets))
    move_group = late_method(lambda: blocking(AsyncAdmin.move_group))
    group_lag = late_method(lambda: blocking(AsyncAdmin.group_lag))
    partition_health = late_method(lambda: blocking(AsyncAdmin.partition_health))
    first_records = late_method(lambda: blocking(AsyncAdmin.first_records))
    commit_offsets = late_method(lambda: blocking(AsyncAdmin.commit_offsets))
