"""The list of differences: each entry has its reason, and the test fails for a difference that no longer occurs."""

from collections.abc import Sequence

from interop.differential.differences import ANY, MISSING, ONLY_HERE, Difference
from interop.differential.listed_data import DATA
from interop.differential.listed_groups import GROUPS
from interop.differential.listed_sessions import SESSIONS
from tailrace.protocol.registry import CLIENT_APIS, OWN_APIS

_OK = "NONE (0)"
_UNKNOWN = "UNKNOWN_SERVER_ERROR (-1)"
_BAD_REQUEST = "INVALID_REQUEST (42)"
_APIS_OF_KAFKA = {
    *(0, 1, 2, 3, *range(8, 52), 55, 57, 60, 61, 64, 65, 66, 68, 69, 74, 75, 76, 77, 78, 79, 80, 81),
    *(83, 84, 85, 86, 87, 90, 91, 92),
} - {17, 36}
"""The APIs that a broker of Apache Kafka 4.1 announces on a listener without SASL."""

_CLUSTER = (
    Difference(
        "ApiVersions",
        ("versions",),
        {f"api_keys[{key}]": MISSING for key in sorted(_APIS_OF_KAFKA - CLIENT_APIS.keys())},
        "see APIs above",
    ),
    Difference(
        "ApiVersions",
        ("versions",),
        {f"api_keys[{key}]": ONLY_HERE for key in OWN_APIS},
        "APIs of Tailrace (docs/decisions/0053-our-apis-have-keys-of-their-own.md)",
    ),
    Difference(
        "ApiVersions",
        ("versions",),
        {"api_keys[8].max_version": (10, 9), "api_keys[9].max_version": (10, 9)},
        "Kafka 4.1 has version 10, with topic ids, and does not announce it yet",
    ),
    Difference(
        "ApiVersions",
        ("versions",),
        {"api_keys[80].max_version": (1, 0)},
        "KIP-1186: a change of the voters that is answered before it is committed; Kafka 4.2 has it",
    ),
    Difference(
        "ApiVersions",
        ("versions",),
        {"api_keys[27].max_version": (2, 1)},
        "KIP-1228: markers with the version of their transaction; Kafka 4.2 has it",
    ),
    Difference(
        "ApiVersions",
        ("versions",),
        {
            **{
                f"supported_features[{name}]": MISSING
                for name in ("eligible.leader.replicas.version", "group.version", "kraft.version", "share.version")
            },
            **{
                f"finalized_features[{name}]": MISSING for name in ("eligible.leader.replicas.version", "group.version")
            },
            "supported_features[tailrace.group.details]": ONLY_HERE,
            "supported_features[tailrace.forwarding]": ONLY_HERE,
            "supported_features[tailrace.key.ranges]": ONLY_HERE,
            "supported_features[tailrace.key.sharing]": ONLY_HERE,
            "supported_features[tailrace.sinks]": ONLY_HERE,
        },
        "Kafka's are no features here; Tailrace's are for its own tools and nodes",
    ),
    Difference(
        "ApiVersions",
        ("versions",),
        {
            "supported_features[metadata.version].min_version": (26, 7),
        },
        "Tailrace has the rules of these levels; no log of Tailrace is older than 26",
    ),
    Difference(
        "Metadata",
        ("a null name", "a topic of no id"),
        {
            "topics.error_code": ("INVALID_TOPIC_EXCEPTION (17)", _UNKNOWN),
            "error_code": (_OK, _UNKNOWN),
            "brokers": ONLY_HERE,
            "cluster_id": ("<cluster>", None),
            "controller_id": (1, -1),
        },
        "one bad topic does not spoil the answer for the others",
    ),
)

_TOPICS = (
    Difference(
        "CreateTopics",
        ("a topic with spaces around a number",),
        {"topics.configs[retention.ms].value": ("5000", " 5000 ")},
        "every node reads the text of a setting, so the text is stored in one form",
    ),
    Difference(
        "DeleteTopics",
        ("a topic is deleted twice at once",),
        {"responses": (ANY, ANY)},
        "refused at each place at which it is named, and with its id; Kafka refuses it once, without the id",
    ),
)

_CONFIGS = (
    Difference(
        "DescribeConfigs",
        ("settings of a topic with synonyms", "seeded *"),
        {
            "results.configs[flush.ms].synonyms": ONLY_HERE,
            "results.configs[segment.ms].synonyms": ONLY_HERE,
            "results.configs[segment.jitter.ms].synonyms": ONLY_HERE,
        },
        "every setting that can give the default is shown, in each unit; Kafka shows some of them",
    ),
    Difference(
        "DescribeConfigs",
        ("settings of broker 1 with synonyms",),
        {"results.configs[log.retention.ms].synonyms": MISSING, "results.configs[node.id].synonyms": ONLY_HERE},
        "a broker's setting is shown under the name that was asked for, with a default if there is one",
    ),
    Difference(
        "DescribeConfigs",
        ("settings of resource type 8",),
        {"results.error_code": (_BAD_REQUEST, _OK), "results.configs[root]": MISSING},
        "loggers have no settings here",
    ),
    Difference(
        "IncrementalAlterConfigs",
        ("a change of resource type 8",),
        {"responses.error_code": (_BAD_REQUEST, _OK)},
        "loggers have no settings here",
    ),
    Difference(
        "IncrementalAlterConfigs",
        ("a change: an operation that is none", "a change: operation -1"),
        {"responses.error_code": (_BAD_REQUEST, _UNKNOWN)},
        "the request is wrong, not the server",
    ),
    Difference(
        "IncrementalAlterConfigs",
        ("a change of broker *: a topic's setting",),
        {"responses.error_code": (_BAD_REQUEST, _OK)},
        "there are no plugins that could have such a setting, and a misspelt name must not pass",
    ),
)

_REPLICAS = (
    Difference(
        "DescribeQuorum",
        ("the quorum of __cluster_metadata-0",),
        {
            "topics.partitions.leader_epoch": (ANY, ANY),
            "topics.partitions.high_watermark": (ANY, ANY),
            "topics.partitions.current_voters.log_end_offset": (ANY, ANY),
            "topics.partitions.current_voters.replica_directory_id": ("<directory>", ""),
            "nodes.listeners": (ANY, ANY),
        },
        "each server has its own metadata log; a single controller is found at its broker's address; a voter's "
        "directory is known",
    ),
    Difference(
        "DescribeQuorum",
        ("the quorum of __cluster_metadata-1", "the quorum of replicas-0"),
        {
            "topics.partitions.high_watermark": (-1, 0),
            "topics.partitions.leader_id": (-1, 0),
            "topics.partitions.leader_epoch": (-1, 0),
        },
        "an unknown value is -1; 0 is a possible value",
    ),
    Difference(
        "ListConfigResources",
        ("resources of types ()", "resources of types (8,)"),
        {"config_resources": MISSING},
        "loggers have no settings here",
    ),
)


_SECURITY = (
    Difference(
        "CreateDelegationToken",
        ("a token of the owner None:alice",),
        {"error_code": ("DELEGATION_TOKEN_REQUEST_NOT_ALLOWED (64)", _UNKNOWN)},
        "the request is wrong, not the server",
    ),
)

DIFFERENCES: Sequence[Difference] = (*_CLUSTER, *_TOPICS, *_CONFIGS, *_REPLICAS, *_SECURITY, *DATA, *SESSIONS, *GROUPS)
