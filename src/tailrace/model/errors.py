"""Kafka's error codes, and the one exception that crosses layers."""

import errno
from enum import IntEnum
from typing import Self


class ErrorCode(IntEnum):
    """An error as it stands on the wire, an int16.

    A code that Tailrace gives has its meaning in its first sentence, and then what to do: docs/reference/errors.md has
    both.
    """

    UNKNOWN_SERVER_ERROR = -1
    """The server failed in a way that has no code, or gave a code that this client does not know. Look at the log of
    the broker that the text names."""
    NONE = 0
    OFFSET_OUT_OF_RANGE = 1
    """The partition has no record at this offset: the record was deleted, or the offset is behind the end. Seek to an
    offset that exists, or set `auto_offset_reset`."""
    CORRUPT_MESSAGE = 2
    """A batch fails its checksum or contradicts itself. On a write, try again; on a read, restore the replica, or step
    over the batch with `on_corrupt="skip"`."""
    UNKNOWN_TOPIC_OR_PARTITION = 3
    """The cluster does not have this topic or partition. Create the topic, or correct its name; just after its
    creation, try again."""
    INVALID_FETCH_SIZE = 4
    LEADER_NOT_AVAILABLE = 5
    """The partition has no leader at the moment. Wait; if no broker with a complete replica comes back, see `tailrace
    topics elect`."""
    NOT_LEADER_OR_FOLLOWER = 6
    """The broker does not lead this partition, or has no replica of it. Clients ask for the leader and try again;
    nothing is to do."""
    REQUEST_TIMED_OUT = 7
    """The answer, or the space for a record, did not come in time. Look at the load and the logs of the brokers, or set
    a longer time-out; a write may have been carried out."""
    BROKER_NOT_AVAILABLE = 8
    """No broker with this id is in the cluster now. Start the broker, or correct the id."""
    REPLICA_NOT_AVAILABLE = 9
    """The broker has no replica of this partition that can answer. Ask another replica, or wait until this replica is
    in sync."""
    MESSAGE_TOO_LARGE = 10
    """A record or batch is larger than the topic or the client allows. Send smaller records, or raise
    `max.message.bytes` of the topic and `max_request_size` of the producer."""
    STALE_CONTROLLER_EPOCH = 11
    OFFSET_METADATA_TOO_LARGE = 12
    """The text of a committed offset is too long, or a group has too many ranges in a partition. Commit a shorter text;
    a keyed consumer commits fewer ranges by itself."""
    NETWORK_EXCEPTION = 13
    """A connection could not be made, or ended before the answer. Check the address, the firewall and whether the node
    runs."""
    COORDINATOR_LOAD_IN_PROGRESS = 14
    """The coordinator reads its state. Clients try again; nothing is to do."""
    COORDINATOR_NOT_AVAILABLE = 15
    """The group or the transactional id has no coordinator at the moment. Clients try again; if this lasts, the
    internal topic has no leader."""
    NOT_COORDINATOR = 16
    """Another broker is the coordinator of this group or transactional id. Clients find the coordinator and try again;
    nothing is to do."""
    INVALID_TOPIC_EXCEPTION = 17
    """The name is no legal topic name, or the topic cannot be used in this way. Use letters, digits, `.`, `_` and `-`,
    249 at most; views are only read."""
    RECORD_LIST_TOO_LARGE = 18
    """A batch is larger than a segment of the topic. Send smaller batches, or raise `segment.bytes`."""
    NOT_ENOUGH_REPLICAS = 19
    """Fewer replicas are in sync than `min.insync.replicas` asks for; nothing was written. Start the missing
    brokers."""
    NOT_ENOUGH_REPLICAS_AFTER_APPEND = 20
    """The record was written, but too few replicas were in sync then. Start the missing brokers; an idempotent producer
    repeats the record without a duplicate."""
    INVALID_REQUIRED_ACKS = 21
    """`acks` is no known value, or contradicts other settings. Say `all`, `1` or `0`; an idempotent producer needs
    `all`."""
    ILLEGAL_GENERATION = 22
    """A member spoke for a past generation of its group. Consumers join again; nothing is to do, but uncommitted
    records come again."""
    INCONSISTENT_GROUP_PROTOCOL = 23
    """The member and the other members of the group have no protocol or assignor in common. Give all members the same
    settings."""
    INVALID_GROUP_ID = 24
    """A call needs a group, or the group's name is not legal. Give the consumer a `group`."""
    UNKNOWN_MEMBER_ID = 25
    """The group does not have this member any more. Consumers join again; poll more often, or raise
    `max_poll_interval_ms`, if this happens under load."""
    INVALID_SESSION_TIMEOUT = 26
    """The session time-out lies outside the group's limits. Choose `session_timeout_ms` within
    `group.min.session.timeout.ms` and `group.max.session.timeout.ms`."""
    REBALANCE_IN_PROGRESS = 27
    """The group divides its partitions anew. Poll again, then commit."""
    INVALID_COMMIT_OFFSET_SIZE = 28
    """The commit would need a batch larger than the offsets topic allows. Commit fewer partitions at once, or shorter
    texts."""
    TOPIC_AUTHORIZATION_FAILED = 29
    """The user may not use this topic, or the topic is the cluster's own log. Ask for the permission, or name another
    topic."""
    GROUP_AUTHORIZATION_FAILED = 30
    """The user may not use this group; Apache Kafka gives this code. Ask for the permission."""
    CLUSTER_AUTHORIZATION_FAILED = 31
    """The request is for brokers, and lacks the secret of a broker's process. Nothing is to do; if a node logs this,
    its clock or directory was copied from another node."""
    INVALID_TIMESTAMP = 32
    """The timestamp of a record is no time, or lies too far from the broker's clock. Correct the timestamp, or the
    clock; see `message.timestamp.before.max.ms` and `message.timestamp.after.max.ms`."""
    UNSUPPORTED_SASL_MECHANISM = 33
    """The listener does not offer this mechanism of SASL. Choose an offered mechanism for `sasl.mechanism`, or add the
    mechanism to `sasl.enabled.mechanisms` of the nodes."""
    ILLEGAL_SASL_STATE = 34
    """The client began SASL on a listener without SASL, or sent a step of SASL out of order. Set
    `security.protocol=PLAINTEXT`."""
    UNSUPPORTED_VERSION = 35
    """The server, or a broker of the cluster, does not know this request in the version that the client needs. Upgrade
    the older side, or do without the call."""
    TOPIC_ALREADY_EXISTS = 36
    """A topic of this name exists. Use the topic, or choose another name."""
    INVALID_PARTITIONS = 37
    """The number of partitions is not possible. A topic has 1 partition or more, and never gets fewer."""
    INVALID_REPLICATION_FACTOR = 38
    """The number of replicas is below 1, or above the number of brokers that can take a replica. Start more brokers, or
    ask for fewer replicas."""
    INVALID_REPLICA_ASSIGNMENT = 39
    """A list of replicas names brokers that do not exist, or a broker twice. Correct the list."""
    INVALID_CONFIG = 40
    """A setting has a value that is not possible. The text has the setting and its range."""
    NOT_CONTROLLER = 41
    """The node is not the active controller. Clients and brokers find the controller and try again; nothing is to
    do."""
    INVALID_REQUEST = 42
    """The request or the call contradicts itself, or the client is closed. Correct the call; the text says what is
    wrong."""
    UNSUPPORTED_FOR_MESSAGE_FORMAT = 43
    POLICY_VIOLATION = 44
    """The operation is not allowed here, such as deleting records of a compacted topic, or a number beyond the node's
    limits. The text has the rule, and the setting if there is a setting."""
    OUT_OF_ORDER_SEQUENCE_NUMBER = 45
    """A record of an idempotent producer came before its predecessor, or the progress of a sink is lost. The producer
    repairs a gap by itself; for a sink see the text."""
    DUPLICATE_SEQUENCE_NUMBER = 46
    """The batch was written already. Nothing is to do: the records are there once."""
    INVALID_PRODUCER_EPOCH = 47
    """A newer producer has this producer id or transactional id. Close this producer; without a transactional id it
    goes on by itself."""
    INVALID_TXN_STATE = 48
    """The transaction is not in a state that allows the call. Begin, commit and abort in order;
    `producer.transaction()` does."""
    INVALID_PRODUCER_ID_MAPPING = 49
    """The coordinator does not know the producer id of this transactional id any more. Make a new producer."""
    INVALID_TRANSACTION_TIMEOUT = 50
    """The time-out of the transaction is above `transaction.max.timeout.ms` of the brokers. Choose a shorter
    `transaction_timeout_ms`."""
    CONCURRENT_TRANSACTIONS = 51
    """The last transaction of this transactional id is not finished yet. Clients try again; nothing is to do."""
    TRANSACTION_COORDINATOR_FENCED = 52
    """A marker came from a coordinator that another coordinator has replaced. Nothing is to do: brokers settle this
    between them."""
    TRANSACTIONAL_ID_AUTHORIZATION_FAILED = 53
    """The producer may not use the transactional id, or gave none. Ask for the permission, or set
    `transactional_id`."""
    SECURITY_DISABLED = 54
    """The cluster has no authorizer, so that it keeps no ACLs. Set `authorizer.class.name=StandardAuthorizer` on all
    nodes (docs/security.md)."""
    OPERATION_NOT_ATTEMPTED = 55
    """Another part of the same request failed first, or the record's transaction was aborted. Look at the other
    error."""
    KAFKA_STORAGE_ERROR = 56
    """The disk of the broker failed or is full. Free space or replace the disk; the text and the log name the path."""
    LOG_DIR_NOT_FOUND = 57
    """The directory of data does not exist, or is not a broker's. Correct the path."""
    SASL_AUTHENTICATION_FAILED = 58
    """The user or the password is wrong, or the node cannot make a principal of the client's certificate. Correct
    `sasl.username` and `sasl.password`, or look at `ssl.principal.mapping.rules`; the node's log has the reason."""
    UNKNOWN_PRODUCER_ID = 59
    """The broker knows no record of this producer any more; Apache Kafka before 2.5 gives this code. Abort the
    transaction, or send again: the producer begins anew by itself."""
    REASSIGNMENT_IN_PROGRESS = 60
    DELEGATION_TOKEN_AUTH_DISABLED = 61
    DELEGATION_TOKEN_NOT_FOUND = 62
    DELEGATION_TOKEN_OWNER_MISMATCH = 63
    DELEGATION_TOKEN_REQUEST_NOT_ALLOWED = 64
    """A delegation token needs an authenticated connection. This release has no delegation tokens."""
    DELEGATION_TOKEN_AUTHORIZATION_FAILED = 65
    DELEGATION_TOKEN_EXPIRED = 66
    INVALID_PRINCIPAL_TYPE = 67
    NON_EMPTY_GROUP = 68
    """The group has members. Stop its consumers first."""
    GROUP_ID_NOT_FOUND = 69
    """The coordinator knows no group of this name. Correct the name; a group without offsets and members is
    forgotten."""
    FETCH_SESSION_ID_NOT_FOUND = 70
    """The broker does not know the fetch session any more. Clients begin a new session; nothing is to do."""
    INVALID_FETCH_SESSION_EPOCH = 71
    """A request does not follow the last request of its fetch session. Clients begin a new session; nothing is to
    do."""
    LISTENER_NOT_FOUND = 72
    """The leader has no listener of the name by which the client came. Give all brokers listeners of the same names."""
    TOPIC_DELETION_DISABLED = 73
    """Topics may not be deleted in this cluster. Set `delete.topic.enable=true` on the controllers."""
    FENCED_LEADER_EPOCH = 74
    """The client or follower knows an older leader than the broker. Clients ask for the leader and try again; nothing
    is to do."""
    UNKNOWN_LEADER_EPOCH = 75
    """The client or follower knows a newer leader than the broker. Clients try again; nothing is to do."""
    UNSUPPORTED_COMPRESSION_TYPE = 76
    """The codec is not known, or the version of the request has not got it. Choose none, gzip, snappy, lz4 or zstd."""
    STALE_BROKER_EPOCH = 77
    """A broker spoke with the epoch of an earlier registration. Nothing is to do: the broker registers again."""
    OFFSET_NOT_AVAILABLE = 78
    """The broker cannot say yet which records are committed there, or an index of keys is not complete. Clients try
    again; nothing is to do."""
    MEMBER_ID_REQUIRED = 79
    """A member of a classic group has to join again with the id that it got. Clients do so; nothing is to do."""
    PREFERRED_LEADER_NOT_AVAILABLE = 80
    """The preferred leader is down or not in sync. Start the broker, and wait until its replica is in sync."""
    GROUP_MAX_SIZE_REACHED = 81
    """The group has as many members as it may have, or as much metadata. Start fewer members, or raise `group.max.size`
    or `group.consumer.max.size`."""
    FENCED_INSTANCE_ID = 82
    """Another member has the same `group_instance_id`. Give each process a name of its own."""
    ELIGIBLE_LEADERS_NOT_AVAILABLE = 83
    """No replica that is complete is alive. Start its broker, or accept the loss with `tailrace topics elect
    --unclean`."""
    ELECTION_NOT_NEEDED = 84
    """The right replica leads already. Nothing is to do."""
    NO_REASSIGNMENT_IN_PROGRESS = 85
    """The partition is not being moved, so that no move can be cancelled. Nothing is to do."""
    GROUP_SUBSCRIBED_TO_TOPIC = 86
    """Members of the group read this topic, so that its offsets cannot be deleted. Stop the members first."""
    INVALID_RECORD = 87
    """The cluster refuses a record, or the client's deserializer does. Correct the record, such as the missing key of a
    compacted topic; the text names the record."""
    UNSTABLE_OFFSET_COMMIT = 88
    """An open transaction has set an offset of this partition. Clients try again; nothing is to do."""
    THROTTLING_QUOTA_EXCEEDED = 89
    """The broker does as much of this work as it can. Try again later."""
    PRODUCER_FENCED = 90
    """Another producer with this transactional id has begun, or another run writes the sink. Close this producer; let
    one process have the id."""
    RESOURCE_NOT_FOUND = 91
    """The described object does not exist. Correct its name."""
    DUPLICATE_RESOURCE = 92
    """A request names an object twice, or a second driver writes the sink. Correct the request; for a sink see the
    text."""
    UNACCEPTABLE_CREDENTIAL = 93
    """The credential of a user is not acceptable; the text says why. Correct the credential."""
    INCONSISTENT_VOTER_SET = 94
    INVALID_UPDATE_VERSION = 95
    """A leader's change of the in-sync replicas is based on a past state. Nothing is to do: the leader asks again."""
    FEATURE_UPDATE_FAILED = 96
    PRINCIPAL_DESERIALIZATION_FAILURE = 97
    """A request that a broker passed on names a user that cannot be read. Upgrade the older of the two nodes."""
    SNAPSHOT_NOT_FOUND = 98
    """The controller does not have this snapshot any more. Nothing is to do: nodes ask for the latest snapshot."""
    POSITION_OUT_OF_RANGE = 99
    """A part of a snapshot was asked for behind its end. Nothing is to do: nodes begin anew."""
    UNKNOWN_TOPIC_ID = 100
    """The broker knows no topic with this id: the topic was deleted, or the broker does not know it yet.
    Clients ask for the topic by its name again."""
    DUPLICATE_BROKER_REGISTRATION = 101
    """A broker with the same `node.id` is alive. Give each node an id of its own, or stop the other node."""
    BROKER_ID_NOT_REGISTERED = 102
    """No broker of this id is registered. Correct the id."""
    INCONSISTENT_TOPIC_ID = 103
    """The topic's id is not the id that the request has: the topic was made anew. Clients ask for the topic by its name
    again."""
    INCONSISTENT_CLUSTER_ID = 104
    """The node, or the bootstrap address, belongs to another cluster. Correct the addresses, or the node's
    directory."""
    TRANSACTIONAL_ID_NOT_FOUND = 105
    """The coordinator knows no such transactional id. Correct the name; unused ids are forgotten after a week."""
    FETCH_SESSION_TOPIC_ID_ERROR = 106
    """A fetch session mixes topics by name and by id. Clients begin a new session; nothing is to do."""
    INELIGIBLE_REPLICA = 107
    """A replica cannot join the in-sync replicas at the moment. Nothing is to do: the leader asks again."""
    NEW_LEADER_ELECTED = 108
    """The change of the in-sync replicas has given the partition another leader. Nothing is to do."""
    OFFSET_MOVED_TO_TIERED_STORAGE = 109
    FENCED_MEMBER_EPOCH = 110
    """The coordinator has removed the member, or another process speaks for it. Consumers join again; nothing is to
    do."""
    UNRELEASED_INSTANCE_ID = 111
    """An earlier process with this `group_instance_id` has not left yet. Wait until its session ends, or stop the
    process."""
    UNSUPPORTED_ASSIGNOR = 112
    """The coordinator does not have this assignor. Set `group_remote_assignor` to `uniform` or `range`."""
    STALE_MEMBER_EPOCH = 113
    """A commit came from a past epoch of the member. Poll again, then commit."""
    MISMATCHED_ENDPOINT_TYPE = 114
    """The request is for controllers and came to a broker, or the reverse. Use the other listener's address."""
    UNSUPPORTED_ENDPOINT_TYPE = 115
    """The request asks for a kind of node that does not exist. Nothing is to do."""
    UNKNOWN_CONTROLLER_ID = 116
    UNKNOWN_SUBSCRIPTION_ID = 117
    TELEMETRY_TOO_LARGE = 118
    INVALID_REGISTRATION = 119
    """The registration of a broker cannot hold, or does not fit the cluster. Correct its settings; the text names the
    setting."""
    TRANSACTION_ABORTABLE = 120
    """The transaction cannot be committed. Abort the transaction, and repeat it."""
    INVALID_RECORD_STATE = 121
    SHARE_SESSION_NOT_FOUND = 122
    INVALID_SHARE_SESSION_EPOCH = 123
    FENCED_STATE_EPOCH = 124
    """The progress by key was reset or deleted since the member read it. Members read the progress again; nothing is to
    do."""
    INVALID_VOTER_KEY = 125
    """A request for a voter came to another node, or to another directory of the node. Correct the id and directory:
    `tailrace quorum describe` shows both."""
    DUPLICATE_VOTER = 126
    """The quorum has this voter already. Remove the old voter first."""
    VOTER_NOT_FOUND = 127
    """The quorum has no such voter. Correct the id and directory: `tailrace quorum describe` shows both."""
    INVALID_REGULAR_EXPRESSION = 128
    """The pattern of a subscription is no regular expression of RE2. Correct the pattern."""
    REBOOTSTRAP_REQUIRED = 129

    @property
    def retriable(self) -> bool:
        """Whether the same request may succeed later, by Kafka's own table."""
        return self in _RETRIABLE


_RETRIABLE = frozenset(
    (
        ErrorCode.CORRUPT_MESSAGE,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.LEADER_NOT_AVAILABLE,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.REQUEST_TIMED_OUT,
        ErrorCode.REPLICA_NOT_AVAILABLE,
        ErrorCode.NETWORK_EXCEPTION,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.NOT_ENOUGH_REPLICAS,
        ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
        ErrorCode.NOT_CONTROLLER,
        ErrorCode.CONCURRENT_TRANSACTIONS,
        ErrorCode.KAFKA_STORAGE_ERROR,
        ErrorCode.FETCH_SESSION_ID_NOT_FOUND,
        ErrorCode.INVALID_FETCH_SESSION_EPOCH,
        ErrorCode.LISTENER_NOT_FOUND,
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.UNKNOWN_LEADER_EPOCH,
        ErrorCode.OFFSET_NOT_AVAILABLE,
        ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE,
        ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE,
        ErrorCode.ELECTION_NOT_NEEDED,
        ErrorCode.UNSTABLE_OFFSET_COMMIT,
        ErrorCode.THROTTLING_QUOTA_EXCEEDED,
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.INCONSISTENT_TOPIC_ID,
        ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR,
        ErrorCode.SHARE_SESSION_NOT_FOUND,
        ErrorCode.INVALID_SHARE_SESSION_EPOCH,
    )
)


_LONGEST_DETAIL = 1_000


class KafkaError(Exception):
    """A failure with a code that a client understands and a detail that a person understands.

    The server turns the failure into the error field of a response in one place, per partition where the protocol has
    such a field. A long detail is cut: it may quote a name of 32,767 bytes, and a response cannot hold more than that.
    """

    def __init__(self, code: ErrorCode, detail: str = "") -> None:
        if len(detail) > _LONGEST_DETAIL:
            detail = f"{detail[:_LONGEST_DETAIL]}..."
        super().__init__(code, detail)
        self.code = code
        self.detail = detail

    @property
    def retriable(self) -> bool:
        """Whether the same call may succeed later; clients have repeated the call already, up to their time-outs."""
        return self.code.retriable

    def without_frames(self) -> Self:
        """This error without its traceback, to be kept as a value.

        The traceback has the frames of all callers. If a frame has the error among its variables, both keep
        each other, and also the received bytes of the request, until the next search for garbage.
        """
        return self.with_traceback(None)

    def __str__(self) -> str:
        return f"{self.code.name}: {self.detail}" if self.detail else self.code.name


class MalformedMessage(KafkaError):
    """Bytes that are not the message that their header claims. The server closes the connection of the sender."""

    def __init__(self, detail: str) -> None:
        super().__init__(ErrorCode.INVALID_REQUEST, detail)


class CorruptRecords(KafkaError):
    """Record bytes that fail their checksum or contradict themselves. If stored, the detail names file and position."""

    def __init__(
        self, detail: str, code: ErrorCode = ErrorCode.CORRUPT_MESSAGE, *, record_index: int | None = None
    ) -> None:
        super().__init__(code, detail)
        self.record_index = record_index
        """The record at fault, counted from 0 in its batch; None if the fault is in no single record."""


_NO_SPACE = frozenset((errno.ENOSPC, errno.EDQUOT))
_SHORTAGES = _NO_SPACE | {errno.EMFILE, errno.ENFILE, errno.ENOMEM}


class StorageError(KafkaError):
    """The disk failed or is full. The detail names the path and the operating system's words."""

    def __init__(self, detail: str, number: int = 0) -> None:
        """`number` is the operating system's errno, 0 for a failure without errno."""
        super().__init__(ErrorCode.KAFKA_STORAGE_ERROR, detail)
        self.number = number

    @property
    def is_shortage(self) -> bool:
        """Whether space, descriptors or memory were short: no stored data is in doubt, and the shortage may pass."""
        return self.number in _SHORTAGES

    @property
    def is_disk_full(self) -> bool:
        """Whether the disk has no space left, or the user's quota is used up."""
        return self.number in _NO_SPACE
