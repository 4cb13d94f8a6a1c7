import ast
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

import tailrace
from tailrace.protocol.messages.produce import ProduceRequest, ProduceResponse
from tailrace.protocol.registry import (
    APIS,
    CLIENT_APIS,
    CONTROLLER_APIS,
    FORWARDED_APIS,
    OWN_APIS,
    Api,
    ForwardingKind,
    FrameClass,
    PeerConnection,
    api_of,
    request_type,
)

SERVED = {
    0: ("Produce", 3, 13),
    1: ("Fetch", 4, 18),
    2: ("ListOffsets", 1, 10),
    3: ("Metadata", 0, 13),
    8: ("OffsetCommit", 2, 10),
    9: ("OffsetFetch", 1, 10),
    10: ("FindCoordinator", 0, 6),
    11: ("JoinGroup", 0, 9),
    12: ("Heartbeat", 0, 4),
    13: ("LeaveGroup", 0, 5),
    14: ("SyncGroup", 0, 5),
    15: ("DescribeGroups", 0, 6),
    16: ("ListGroups", 0, 5),
    17: ("SaslHandshake", 0, 1),
    18: ("ApiVersions", 0, 4),
    19: ("CreateTopics", 2, 7),
    20: ("DeleteTopics", 1, 6),
    21: ("DeleteRecords", 0, 2),
    22: ("InitProducerId", 0, 5),
    23: ("OffsetForLeaderEpoch", 2, 4),
    24: ("AddPartitionsToTxn", 0, 5),
    25: ("AddOffsetsToTxn", 0, 4),
    26: ("EndTxn", 0, 5),
    27: ("WriteTxnMarkers", 1, 2),
    28: ("TxnOffsetCommit", 0, 5),
    29: ("DescribeAcls", 1, 3),
    30: ("CreateAcls", 1, 3),
    31: ("DeleteAcls", 1, 3),
    32: ("DescribeConfigs", 1, 4),
    33: ("AlterConfigs", 0, 2),
    34: ("AlterReplicaLogDirs", 1, 2),
    35: ("DescribeLogDirs", 1, 4),
    36: ("SaslAuthenticate", 0, 2),
    37: ("CreatePartitions", 0, 3),
    38: ("CreateDelegationToken", 1, 3),
    39: ("RenewDelegationToken", 1, 2),
    40: ("ExpireDelegationToken", 1, 2),
    41: ("DescribeDelegationToken", 1, 3),
    42: ("DeleteGroups", 0, 2),
    43: ("ElectLeaders", 0, 2),
    44: ("IncrementalAlterConfigs", 0, 1),
    45: ("AlterPartitionReassignments", 0, 1),
    46: ("ListPartitionReassignments", 0, 0),
    47: ("OffsetDelete", 0, 0),
    48: ("DescribeClientQuotas", 0, 1),
    49: ("AlterClientQuotas", 0, 1),
    50: ("DescribeUserScramCredentials", 0, 0),
    51: ("AlterUserScramCredentials", 0, 0),
    55: ("DescribeQuorum", 0, 2),
    57: ("UpdateFeatures", 0, 2),
    60: ("DescribeCluster", 0, 2),
    61: ("DescribeProducers", 0, 0),
    64: ("UnregisterBroker", 0, 0),
    65: ("DescribeTransactions", 0, 0),
    66: ("ListTransactions", 0, 2),
    68: ("ConsumerGroupHeartbeat", 0, 1),
    69: ("ConsumerGroupDescribe", 0, 1),
    74: ("ListConfigResources", 0, 1),
    75: ("DescribeTopicPartitions", 0, 0),
    80: ("AddRaftVoter", 0, 1),
    81: ("RemoveRaftVoter", 0, 0),
    10_000: ("DescribeFetchSessions", 0, 0),
    10_001: ("CommitSink", 0, 0),
    10_002: ("DescribeSinks", 0, 0),
    10_003: ("RenewSinkRun", 0, 0),
}
SERVED_BY_CONTROLLERS_ALONE = {
    52: ("Vote", 0, 2),
    53: ("BeginQuorumEpoch", 0, 1),
    54: ("EndQuorumEpoch", 0, 1),
    56: ("AlterPartition", 2, 3),
    58: ("Envelope", 0, 0),
    59: ("FetchSnapshot", 0, 1),
    62: ("BrokerRegistration", 0, 4),
    63: ("BrokerHeartbeat", 0, 1),
    67: ("AllocateProducerIds", 0, 0),
    70: ("ControllerRegistration", 0, 0),
    73: ("AssignReplicasToDirs", 0, 0),
    82: ("UpdateRaftVoter", 0, 0),
}


def test_the_served_versions_are_those_we_promise() -> None:
    assert {key: (api.name, api.min_version, api.max_version) for key, api in CLIENT_APIS.items()} == SERVED


def test_controllers_serve_what_their_own_listener_is_for_and_what_brokers_bring_them() -> None:
    alone = {key: api for key, api in CONTROLLER_APIS.items() if key not in CLIENT_APIS}
    found = {key: (api.name, api.min_version, api.max_version) for key, api in alone.items()}
    assert found == SERVED_BY_CONTROLLERS_ALONE
    assert APIS.keys() == CLIENT_APIS.keys() | CONTROLLER_APIS.keys()


def test_the_keys_of_our_own_apis_are_far_from_kafkas() -> None:
    """Kafka's last key is below 100."""
    assert {key: api.name for key, api in OWN_APIS.items()} == {
        10_000: "DescribeFetchSessions",
        10_001: "CommitSink",
        10_002: "DescribeSinks",
        10_003: "RenewSinkRun",
    }
    assert max(APIS.keys() - OWN_APIS.keys()) < 100


def test_only_produce_is_announced_from_below_what_is_served() -> None:
    lower = {api.name: api.advertised_min for api in APIS.values() if api.advertised_min != api.min_version}
    assert lower == {"Produce": 0}
    assert not APIS[0].serves(2)
    assert APIS[0].serves(3)


@pytest.mark.parametrize("key", APIS)
def test_request_and_response_belong_to_their_api(key: int) -> None:
    api = APIS[key]
    assert request_type(key) is api.request
    assert api_of(api.request) is api_of(api.response) is api


def test_an_api_that_is_not_served_is_a_key_error() -> None:
    with pytest.raises(KeyError):
        request_type(4)
    with pytest.raises(KeyError):
        api_of(int)
    assert api_of(ProduceRequest).response is ProduceResponse


def names_of(has: Callable[[Api], bool]) -> set[str]:
    return {api.name for api in APIS.values() if has(api)}


def test_only_fetch_may_have_more_elements_than_others_and_what_is_costly_per_element_has_fewer() -> None:
    assert names_of(lambda api: api.max_elements > 200_000) == {"Fetch"}
    assert names_of(lambda api: api.max_elements < 200_000) == {
        *("CreateTopics", "DeleteTopics", "CreatePartitions", "DeleteRecords", "ElectLeaders"),
        *("DescribeConfigs", "AlterConfigs", "IncrementalAlterConfigs"),
        *("CreateAcls", "DeleteAcls", "DescribeClientQuotas", "AlterClientQuotas", "DescribeProducers"),
        *("DescribeUserScramCredentials", "AlterUserScramCredentials"),
        *("DescribeGroups", "DeleteGroups", "ConsumerGroupDescribe"),
        *("FindCoordinator", "LeaveGroup", "OffsetDelete"),
        *("AddPartitionsToTxn", "WriteTxnMarkers", "DescribeTransactions", "DescribeSinks"),
    }


def test_a_forwarded_request_is_a_question_or_a_change_and_controllers_serve_it() -> None:
    assert names_of(lambda api: api.forwarding is ForwardingKind.QUESTION) == {
        *("ListPartitionReassignments", "DescribeQuorum"),
    }
    assert names_of(lambda api: api.forwarding is ForwardingKind.CHANGE_OF_BROKER) == {
        *("AlterConfigs", "IncrementalAlterConfigs"),
    }
    assert names_of(lambda api: api.forwarding is ForwardingKind.CHANGE) == {
        *("CreateTopics", "DeleteTopics", "CreatePartitions", "ElectLeaders", "AlterPartitionReassignments"),
        *("UpdateFeatures", "UnregisterBroker", "AddRaftVoter", "RemoveRaftVoter", "AlterUserScramCredentials"),
        *("CreateAcls", "DeleteAcls", "AlterClientQuotas"),
    }
    assert FORWARDED_APIS.keys() <= CLIENT_APIS.keys() & CONTROLLER_APIS.keys()


def test_no_row_forwards_an_envelope_or_what_every_broker_can_answer() -> None:
    assert FORWARDED_APIS.keys().isdisjoint((0, 1, 3, 18, 58, 62, 63, 67))


def test_requests_that_can_wait_or_must_not_wait_have_connections_of_their_own() -> None:
    by_connection = {
        connection: names_of(partial(lambda connection, api: api.connection is connection, connection))
        for connection in PeerConnection
    }
    del by_connection[PeerConnection.REQUESTS]
    assert by_connection == {
        PeerConnection.FETCH: {"Fetch"},
        PeerConnection.SNAPSHOT: {"FetchSnapshot"},
        PeerConnection.QUORUM: {"Vote", "BeginQuorumEpoch", "EndQuorumEpoch"},
        PeerConnection.HEARTBEAT: {"BrokerHeartbeat"},
        PeerConnection.ENVELOPE: {"Envelope"},
        PeerConnection.MARKERS: {"WriteTxnMarkers"},
    }


def test_only_produce_and_fetch_have_frame_limits_of_their_own() -> None:
    of_groups = {"JoinGroup", "SyncGroup", "OffsetCommit", "TxnOffsetCommit"}
    assert names_of(lambda api: api.frame_class is FrameClass.LARGE) == {"Produce", *of_groups}
    assert names_of(lambda api: api.frame_class is FrameClass.FETCH) == {"Fetch"}


def is_number(node: ast.expr) -> bool:
    if isinstance(node, ast.Tuple | ast.Set | ast.List):
        return any(map(is_number, node.elts))
    return isinstance(node, ast.Constant) and type(node.value) is int


def bare_api_numbers(source: str) -> Iterator[int]:
    """The lines with an API's number: as `api_key` or compared with it, as index of `APIS`, as key of a handler."""
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.keyword(arg="api_key", value=value):
                found = is_number(value)
            case ast.Compare(left=left, comparators=others):
                found = "api_key" in ast.unparse(left) and any(map(is_number, others))
            case ast.Subscript(value=ast.Name(id=name), slice=index):
                found = name.endswith("APIS") and is_number(index)
            case ast.Dict(keys=keys, values=values):
                found = any(
                    key and is_number(key) and "Handler" in ast.unparse(value)
                    for key, value in zip(keys, values, strict=True)
                )
            case _:
                continue
        if found:
            yield node.value.lineno if isinstance(node, ast.keyword) else node.lineno


@pytest.mark.parametrize(
    "source",
    ["f(api_key=0)", "context.api_key in (1, 2)", "api_key == 18", "CLIENT_APIS[3]", "{19: CreateTopicsHandler()}"],
)
def test_a_bare_number_is_found(source: str) -> None:
    assert list(bare_api_numbers(source)) == [1]


def test_apis_have_numbers_in_the_declarations_of_messages_and_nowhere_else() -> None:
    root, package = Path(__file__).parents[3], Path(tailrace.__file__).parent
    declarations = package / "protocol" / "messages"
    found = [
        f"{path}:{line}"
        for folder in (package, root / "simulation", root / "testkit")
        for path in folder.rglob("*.py")
        if not path.is_relative_to(declarations)
        for line in bare_api_numbers(path.read_text())
    ]
    assert not found
