"""The controller registers and fences brokers, and finalizes the levels of features, as a table."""

from scenarios.controller.decision_table import (
    ALL_BROKERS,
    DIRECTORY,
    NEXT_OFFSET,
    ONE,
    WITH_ORDERS,
    ControllerScenario,
    check_decision,
    setting,
    table,
)
from tailrace.metadata.broker_commands import (
    AllocateProducerIds,
    BrokerRegistered,
    CarriedOut,
    FenceBroker,
    FinalizeMetadataVersion,
    ProducerIdBlock,
    RegisterBroker,
    UnfenceBroker,
)
from tailrace.metadata.image import Endpoint
from tailrace.metadata.records.brokers import FenceBrokerRecord, RecordedEndpoint, RecordedFeature, RegisterBrokerRecord
from tailrace.metadata.records.cluster import (
    AbortTransactionRecord,
    BeginTransactionRecord,
    FeatureLevelRecord,
    ProducerIdsRecord,
)
from tailrace.model.errors import ErrorCode
from tailrace.model.ids import BrokerId, ProducerId

ENDPOINT = Endpoint(listener_name="PLAINTEXT", host="127.0.0.1", port=9092)
BROKERS = [
    ControllerScenario(
        name="a broker's epoch is the offset of its registration",
        when=RegisterBroker(
            broker_id=BrokerId(1),
            incarnation_id=b"i" * 16,
            endpoints=(ENDPOINT,),
            rack="a",
            log_directories=(DIRECTORY,),
        ),
        then=[
            RegisterBrokerRecord(
                broker_id=1,
                incarnation_id=b"i" * 16,
                broker_epoch=NEXT_OFFSET,
                end_points=(RecordedEndpoint(name="PLAINTEXT", host="127.0.0.1", port=9092, security_protocol=0),),
                features=(
                    RecordedFeature(name="metadata.version", min_supported_version=26, max_supported_version=27),
                    RecordedFeature(name="transaction.version", min_supported_version=0, max_supported_version=2),
                    RecordedFeature(name="tailrace.sinks", min_supported_version=1, max_supported_version=1),
                ),
                rack="a",
                fenced=True,
                log_dirs=(DIRECTORY,),
                derived_count=0,
            )
        ],
        response=BrokerRegistered(broker_epoch=NEXT_OFFSET),
    ),
    ControllerScenario(
        name="a registration that is repeated keeps its epoch",
        given=ONE,
        when=RegisterBroker(broker_id=BrokerId(1), incarnation_id=bytes(16), endpoints=()),
        response=BrokerRegistered(broker_epoch=1),
    ),
    ControllerScenario(
        name="a fenced broker is one record, sealed with the changes of partitions that follow",
        given=WITH_ORDERS,
        when=FenceBroker(broker_id=BrokerId(1), broker_epoch=1),
        then=[FenceBrokerRecord(id=1, epoch=1, derived_count=1, derived_crc=634458583)],
        response=BrokerRegistered(broker_epoch=1),
    ),
    ControllerScenario(
        name="a broker that is not fenced needs no unfencing",
        given=ONE,
        when=UnfenceBroker(broker_id=BrokerId(1), broker_epoch=1),
        response=BrokerRegistered(broker_epoch=1),
    ),
    ControllerScenario(
        name="a fence of an earlier registration is stale",
        given=ONE,
        when=FenceBroker(broker_id=BrokerId(1), broker_epoch=0),
        error=ErrorCode.STALE_BROKER_EPOCH,
    ),
    ControllerScenario(
        name="a broker that is not registered is not unfenced",
        when=UnfenceBroker(broker_id=BrokerId(1), broker_epoch=1),
        error=ErrorCode.BROKER_ID_NOT_REGISTERED,
    ),
    ControllerScenario(
        name="producer ids come in blocks of a thousand",
        given=[*ONE, ProducerIdsRecord(broker_id=1, next_producer_id=1000)],
        when=AllocateProducerIds(broker_id=BrokerId(1), broker_epoch=1),
        then=[ProducerIdsRecord(broker_id=1, broker_epoch=1, next_producer_id=2000)],
        response=ProducerIdBlock(first=ProducerId(1000), size=1000),
    ),
    ControllerScenario(
        name="an earlier process gets no producer ids",
        given=ONE,
        when=AllocateProducerIds(broker_id=BrokerId(1), broker_epoch=0),
        error=ErrorCode.STALE_BROKER_EPOCH,
    ),
]
FEATURES = [
    ControllerScenario(
        name="the levels of a new cluster are written down first",
        when=FinalizeMetadataVersion(),
        then=[
            FeatureLevelRecord(name="metadata.version", feature_level=27),
            FeatureLevelRecord(name="transaction.version", feature_level=2),
        ],
        response=CarriedOut(),
    ),
    ControllerScenario(
        name="the founder's settings of elections become those of all brokers",
        when=FinalizeMetadataVersion(),
        founding_settings={"unclean.leader.election.enable": "true", "min.insync.replicas": "2"},
        then=[
            FeatureLevelRecord(name="metadata.version", feature_level=27),
            FeatureLevelRecord(name="transaction.version", feature_level=2),
            setting("min.insync.replicas", "2", of=ALL_BROKERS),
            setting("unclean.leader.election.enable", "true", of=ALL_BROKERS),
        ],
        response=CarriedOut(),
    ),
    ControllerScenario(
        name="a log with records keeps its settings of all brokers",
        given=WITH_ORDERS,
        when=FinalizeMetadataVersion(),
        founding_settings={"min.insync.replicas": "2"},
        then=[
            FeatureLevelRecord(name="metadata.version", feature_level=27),
            FeatureLevelRecord(name="transaction.version", feature_level=2),
        ],
        response=CarriedOut(),
    ),
    ControllerScenario(
        name="a metadata transaction that the former controller has not ended is aborted",
        given=[FeatureLevelRecord(name="metadata.version", feature_level=27), BeginTransactionRecord(name="import")],
        when=FinalizeMetadataVersion(),
        then=[AbortTransactionRecord(reason="the controller changed")],
        response=CarriedOut(),
    ),
    ControllerScenario(
        name="the levels of a cluster that has levels are not written again",
        given=[FeatureLevelRecord(name="metadata.version", feature_level=26)],
        when=FinalizeMetadataVersion(),
        response=CarriedOut(),
    ),
]


@table(*BROKERS)
def test_the_controller_registers_and_fences_brokers(scenario: ControllerScenario) -> None:
    check_decision(scenario)


@table(*FEATURES)
def test_a_new_controller_finalizes_the_levels_of_features(scenario: ControllerScenario) -> None:
    check_decision(scenario)
