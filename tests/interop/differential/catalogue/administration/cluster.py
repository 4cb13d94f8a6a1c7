"""A node's answers about itself and the cluster: ApiVersions, Metadata, DescribeCluster, FindCoordinator, SASL."""

from struct import pack

from interop.differential.catalogue.preparation import created
from interop.differential.script import Answers, Hangup, Script, SendBytes, ask, every_version, key_versions
from tailrace.protocol.messages.api_versions import ApiVersionsRequest, SaslAuthenticateRequest, SaslHandshakeRequest
from tailrace.protocol.messages.groups import FindCoordinatorRequest, ListGroupsRequest
from tailrace.protocol.messages.metadata import (
    Cursor,
    DescribeClusterRequest,
    DescribeTopicPartitionsRequest,
    MetadataRequest,
    MetadataRequestTopic,
    TopicRequest,
)
from tailrace.protocol.messages.quorum import AddRaftVoterRequest, RaftVoterListener, RemoveRaftVoterRequest
from tailrace.protocol.registry import CLIENT_APIS, OWN_APIS
from tailrace.protocol.schema import ZERO_UUID

FIRST, SECOND = "cluster-a", "cluster-b"


def cluster() -> Script:
    yield from created(FIRST, 3)
    yield from created(SECOND, 1)
    yield from _api_versions()
    yield from _metadata()
    yield from _topic_partitions()
    yield from _describe_cluster()
    yield from _coordinators()
    yield from _voters()
    yield from _sasl()
    yield from _unknown_versions()


def _api_versions() -> Script:
    named = ApiVersionsRequest(client_software_name="script", client_software_version="1.0")
    yield from ask("versions", named, *every_version(ApiVersionsRequest))
    for name, version in (("", "1"), ("a b", "1"), ("-a", "1"), ("a", ""), ("a", "x y"), ("ä", "1")):
        request = ApiVersionsRequest(client_software_name=name, client_software_version=version)
        yield from ask(f"versions for {name!r} {version!r}", request, 3, 4)


def metadata(*names: str | None, create: bool = False) -> MetadataRequest:
    """Metadata of these topics, without making them."""
    topics = tuple(MetadataRequestTopic(name=name) for name in names)
    return MetadataRequest(topics=topics, allow_auto_topic_creation=create)


def _metadata() -> Script:
    versions = key_versions(MetadataRequest)
    by_name = tuple(range(4, 14))
    yield from ask("a topic", metadata(FIRST), *every_version(MetadataRequest))
    yield from ask("two topics", metadata(SECOND, FIRST), *versions)
    yield from ask("a topic twice", metadata(FIRST, FIRST), *versions)
    yield from ask("an unknown topic", metadata("nowhere"), *by_name)
    yield from ask("an unknown topic beside a known one", metadata("nowhere", FIRST), *versions)
    for name in ("", "no/such", "..", "x" * 250):
        yield from ask(f"a topic named {name[:9]!r}", metadata(name), *versions)
    yield from ask("no topic", MetadataRequest(topics=()), 1, 4, 9, 13)
    yield from ask("a null name", metadata(None), 10, 11, 12, 13)
    for what, topic_id in (("an unknown id", b"no such topic id"), ("no id", ZERO_UUID)):
        unknown = MetadataRequest(topics=(MetadataRequestTopic(name=None, topic_id=topic_id),))
        yield from ask(f"a topic of {what}", unknown, 10, 12, 13)
    yield from ask("a topic by its id", _by_id, 10, 11, 12, 13)
    named_and_id = MetadataRequest(topics=(MetadataRequestTopic(name=FIRST, topic_id=b"no such topic id"),))
    yield from ask("a topic by name and id", named_and_id, 10, 12, 13)
    operations = MetadataRequest(
        topics=(MetadataRequestTopic(name=FIRST),),
        include_cluster_authorized_operations=True,
        include_topic_authorized_operations=True,
    )
    yield from ask("what may be done with a topic", operations, 8, 9, 10, 13)
    absent = MetadataRequest(
        topics=tuple(MetadataRequestTopic(name=name) for name in ("nowhere", "no/such")),
        allow_auto_topic_creation=False,
        include_topic_authorized_operations=True,
    )
    yield from ask("what may be done with topics that are not there", absent, 8, 9, 10, 13)


def _by_id(answers: Answers) -> MetadataRequest:
    topics = tuple(MetadataRequestTopic(name=None, topic_id=answers.topic_ids[name]) for name in (SECOND, FIRST))
    return MetadataRequest(topics=topics)


def _topic_partitions() -> Script:
    def page(limit: int, *names: str, after: tuple[str, int] | None = None) -> DescribeTopicPartitionsRequest:
        return DescribeTopicPartitionsRequest(
            topics=tuple(TopicRequest(name=name) for name in names),
            response_partition_limit=limit,
            cursor=None if after is None else Cursor(topic_name=after[0], partition_index=after[1]),
        )

    both = (FIRST, SECOND)
    for limit in (2000, 4, 3, 2, 1, 0, -1, 2**31 - 1):
        yield from ask(f"partitions, {limit} on a page", page(limit, *both))
    for after in ((FIRST, 0), (FIRST, 2), (FIRST, 3), (FIRST, -1), (SECOND, 0), ("cluster-aa", 0), ("z", 0), ("", 0)):
        yield from ask(f"partitions after {after}", page(2, *both, after=after))
    yield from ask("partitions of an unknown topic", page(2, "nowhere", FIRST))
    yield from ask("partitions of an unknown topic, all on a page", page(10, "nowhere", FIRST))
    yield from ask("partitions of a topic with an invalid name", page(10, "no/such", FIRST))
    yield from ask("partitions of a topic twice", page(10, FIRST, FIRST))
    yield from ask("partitions of a topic that comes before the cursor", page(10, FIRST, after=(SECOND, 0)))


def _describe_cluster() -> Script:
    for endpoint in (1, 2, 0, 3):
        request = DescribeClusterRequest(include_cluster_authorized_operations=False, endpoint_type=endpoint)
        yield from ask(f"the cluster, endpoint type {endpoint}", request, 0, 1, 2)
    allowed = DescribeClusterRequest(include_cluster_authorized_operations=True, include_fenced_brokers=True)
    yield from ask("the cluster and what may be done", allowed, 0, 1, 2)


def _coordinators() -> Script:
    def asked(*keys: str, kind: int = 0) -> FindCoordinatorRequest:
        return FindCoordinatorRequest(key=keys[0] if keys else "", key_type=kind, coordinator_keys=keys)

    everything = every_version(FindCoordinatorRequest)
    there = lambda answer: all(found.error_code == 0 for found in answer.coordinators)  # noqa: E731
    yield from ask("the group offsets are made", asked("group"), 4, until=there)
    loaded = lambda answer: answer.error_code == 0  # noqa: E731
    yield from ask("the groups are loaded", ListGroupsRequest(), 5, until=loaded)
    yield from ask("a group's coordinator", asked("group"), *everything)
    yield from ask("two groups' coordinators", asked("one", "two"), 4, 5, 6)
    yield from ask("a group's coordinator twice", asked("one", "one"), 4, 6)
    yield from ask("no group's coordinator", asked(), 4, 6)
    yield from ask("the coordinator of a group without a name", asked(""), *key_versions(FindCoordinatorRequest))
    yield from ask("the coordinator of a share", asked("group:topic:0", kind=2), 1, 4, 5)
    for kind in (3, 9, -1):
        yield from ask(f"a coordinator of kind {kind}", asked("x", kind=kind), 1, 4, 6)


def _sasl() -> Script:
    for version in (0, 1):
        yield from ask("a mechanism", SaslHandshakeRequest(mechanism="PLAIN"), version, connection="sasl")
        yield Hangup("sasl")
    for version in (0, 1, 2):
        yield from ask("a token", SaslAuthenticateRequest(auth_bytes=b"token"), version, connection="sasl")
        yield Hangup("sasl")


def _voters() -> Script:
    """Requests about voters that name another cluster: the quorum stays as it is."""
    directory_id, listener = b"no voter has it.", RaftVoterListener(name="CONTROLLER", host="localhost", port=9093)
    add = AddRaftVoterRequest(
        cluster_id="another-cluster",
        timeout_ms=1_000,
        voter_id=9,
        voter_directory_id=directory_id,
        listeners=(listener,),
    )
    yield from ask("another voter for another cluster", add, 0)
    remove = RemoveRaftVoterRequest(cluster_id="another-cluster", voter_id=9, voter_directory_id=directory_id)
    yield from ask("a voter less for another cluster", remove, 0)


def _unknown_versions() -> Script:
    """Frames of a header and no more, in versions that do not exist."""
    of_kafka = [api for _, api in sorted(CLIENT_APIS.items()) if api.key not in OWN_APIS]
    for api in of_kafka:
        for version in {api.min_version - 1, 99, -1}:
            tags = b"\0" if version >= api.flexible_from else b""
            yield SendBytes(f"{api.name} in version {version}", _header(api.key, version) + tags)
            yield Hangup("bytes")
    for key in (-1, 999, 32767):
        yield SendBytes(f"API {key}", _header(key, 0))
        yield Hangup("bytes")
    for api in of_kafka:
        yield SendBytes(f"{api.name} without a body", _header(api.key, api.max_version) + b"\0")
        yield Hangup("bytes")
    for what, payload in (("an empty frame", b""), ("a byte", b"\0"), ("a header cut short", _header(3, 9)[:7])):
        yield SendBytes(what, payload)
        yield Hangup("bytes")


def _header(key: int, version: int) -> bytes:
    return pack(">hhih", key, version, 4711, -1)
