"""Records of brokers and controllers, and their rows in the table of record kinds."""

from collections.abc import Iterable, Iterator
from dataclasses import replace

from tailrace.metadata.derive import NOTHING, Derived, Steps, arrival_steps, departure_steps
from tailrace.metadata.image import BrokerImage, ClusterImage, ControllerImage, Endpoint, SupportedFeature
from tailrace.metadata.image_draft import ImageCircumstances, ImageDraft
from tailrace.metadata.records.kinds import KINDS, MetadataRecord, RecordKind
from tailrace.model.ids import BrokerId
from tailrace.protocol.schema import Int8, Int16, Int32, Int64, UInt16, UInt32, Uuid, field, message, struct

NOT_DERIVED = -1
"""Nothing is derived from this record: Kafka's own controllers write all partition changes into the log."""

_BROKER = 0
_CONTROLLER = 27


@struct
class RecordedEndpoint:
    name: str
    host: str
    port: UInt16
    security_protocol: Int16


@struct
class RecordedFeature:
    name: str
    min_supported_version: Int16
    max_supported_version: Int16


@message(name="RegisterBrokerRecord", versions="0-3", flexible="0+")
class RegisterBrokerRecord(MetadataRecord):
    """A broker has started. Its epoch is the offset of this record."""

    broker_id: Int32
    is_migrating_zk_broker: bool = field(versions="2+", default=False)
    incarnation_id: Uuid
    broker_epoch: Int64
    end_points: tuple[RecordedEndpoint, ...]
    features: tuple[RecordedFeature, ...]
    rack: str | None
    fenced: bool = True
    in_controlled_shutdown: bool = field(versions="1+", default=False)
    log_dirs: tuple[Uuid, ...] = field(versions="3+", tag=0, default=())
    derived_count: Int32 = field(versions="0+", tag=10000, default=NOT_DERIVED)
    """The number of partition changes that follow from this record, see `derive`."""
    derived_crc: UInt32 = field(versions="0+", tag=10001, default=0)
    is_unclean: bool = field(versions="0+", tag=10002, default=False)
    """Whether the broker may have lost acknowledged records (KIP-966)."""


def _registered(record: RegisterBrokerRecord) -> BrokerImage:
    return BrokerImage(
        broker_id=BrokerId(record.broker_id),
        incarnation_id=record.incarnation_id,
        broker_epoch=record.broker_epoch,
        endpoints=_endpoints(record.end_points),
        rack=record.rack,
        fenced=record.fenced,
        in_controlled_shutdown=record.in_controlled_shutdown,
        log_directories=record.log_dirs,
        features=_features(record.features),
    )


def _write_brokers(image: ClusterImage) -> Iterator[RegisterBrokerRecord]:
    for broker in image.brokers.values():
        yield RegisterBrokerRecord(
            broker_id=broker.broker_id,
            incarnation_id=broker.incarnation_id,
            broker_epoch=broker.broker_epoch,
            end_points=recorded_endpoints(broker.endpoints),
            features=recorded_features(broker.features),
            rack=broker.rack,
            fenced=broker.fenced,
            in_controlled_shutdown=broker.in_controlled_shutdown,
            log_dirs=broker.log_directories,
        )


def recorded_endpoints(endpoints: Iterable[Endpoint]) -> tuple[RecordedEndpoint, ...]:
    """Listeners in the form of records."""
    return tuple(
        RecordedEndpoint(name=e.listener_name, host=e.host, port=e.port, security_protocol=e.security_protocol)
        for e in endpoints
    )


def recorded_features(features: Iterable[SupportedFeature]) -> tuple[RecordedFeature, ...]:
    """Features in the form of records."""
    return tuple(
        RecordedFeature(name=f.name, min_supported_version=f.min_version, max_supported_version=f.max_version)
        for f in features
    )


def _departed(draft: ImageDraft, broker_id: int, *, unclean: bool = False) -> Steps[Derived]:
    """The changes of the partitions that the broker gives up; no changes for an unknown broker."""
    if BrokerId(broker_id) not in draft.brokers:
        return _nothing()
    return departure_steps(BrokerId(broker_id), draft.topics.partitions(), ImageCircumstances(draft), unclean=unclean)


def _nothing() -> Steps[Derived]:
    yield from ()
    return NOTHING


KINDS.add(
    RecordKind(
        number=_BROKER,
        record=RegisterBrokerRecord,
        version=3,
        apply=lambda draft, record: draft.put_broker(_registered(record)),
        derived=lambda draft, record: _departed(draft, record.broker_id, unclean=record.is_unclean),
        key=lambda record: (_BROKER, record.broker_id),
        value=lambda state, key: state.brokers.get(key[1]),
        write=_write_brokers,
        place=1,
    )
)


@message(name="UnregisterBrokerRecord", versions="0", flexible="0+")
class UnregisterBrokerRecord(MetadataRecord):
    """A broker is unregistered: it will not come back."""

    broker_id: Int32
    broker_epoch: Int64


def _unregister(draft: ImageDraft, record: UnregisterBrokerRecord) -> None:
    broker = draft.broker(record.broker_id, record.broker_epoch)
    del draft.brokers[broker.broker_id]
    draft.changed_brokers.add(broker.broker_id)


KINDS.add(
    RecordKind(
        number=1,
        record=UnregisterBrokerRecord,
        apply=_unregister,
        key=lambda record: (_BROKER, record.broker_id),
    )
)


@message(name="FenceBrokerRecord", versions="0", flexible="0+")
class FenceBrokerRecord(MetadataRecord):
    """A broker may no longer lead. The partition changes are derived from this record, not written out."""

    id: Int32
    epoch: Int64
    derived_count: Int32 = field(versions="0+", tag=10000, default=NOT_DERIVED)
    derived_crc: UInt32 = field(versions="0+", tag=10001, default=0)


KINDS.add(
    RecordKind(
        number=7,
        record=FenceBrokerRecord,
        apply=lambda draft, record: draft.put_broker(replace(draft.broker(record.id, record.epoch), fenced=True)),
        derived=lambda draft, record: _departed(draft, record.id),
        key=lambda record: (_BROKER, record.id),
    )
)


@message(name="UnfenceBrokerRecord", versions="0", flexible="0+")
class UnfenceBrokerRecord(MetadataRecord):
    """A broker may lead again. The partition changes are derived from this record, not written out."""

    id: Int32
    epoch: Int64
    derived_count: Int32 = field(versions="0+", tag=10000, default=NOT_DERIVED)
    derived_crc: UInt32 = field(versions="0+", tag=10001, default=0)


KINDS.add(
    RecordKind(
        number=8,
        record=UnfenceBrokerRecord,
        apply=lambda draft, record: draft.put_broker(replace(draft.broker(record.id, record.epoch), fenced=False)),
        derived=lambda draft, record: arrival_steps(
            BrokerId(record.id), draft.topics.partitions(), ImageCircumstances(draft)
        ),
        key=lambda record: (_BROKER, record.id),
    )
)


@message(name="BrokerRegistrationChangeRecord", versions="0-2", flexible="0+")
class BrokerRegistrationChangeRecord(MetadataRecord):
    """A change of a registration: `fenced` 1 fences the broker, -1 unfences it, 0 changes nothing.

    The partition changes of a controlled shutdown are derived from this record.
    """

    broker_id: Int32
    broker_epoch: Int64
    fenced: Int8 = field(versions="0+", tag=0, default=0)
    in_controlled_shutdown: Int8 = field(versions="1+", tag=1, default=0)
    log_dirs: tuple[Uuid, ...] = field(versions="2+", tag=2, default=())
    derived_count: Int32 = field(versions="0+", tag=10000, default=NOT_DERIVED)
    derived_crc: UInt32 = field(versions="0+", tag=10001, default=0)


def _change_registration(draft: ImageDraft, record: BrokerRegistrationChangeRecord) -> None:
    broker = draft.broker(record.broker_id, record.broker_epoch)
    draft.put_broker(
        replace(
            broker,
            fenced=_changed_flag(broker.fenced, record.fenced),
            in_controlled_shutdown=_changed_flag(broker.in_controlled_shutdown, record.in_controlled_shutdown),
            log_directories=record.log_dirs or broker.log_directories,
        )
    )


def _changed_flag(flag: bool, change: int) -> bool:
    return flag if change == 0 else change > 0


KINDS.add(
    RecordKind(
        number=17,
        record=BrokerRegistrationChangeRecord,
        version=2,
        apply=_change_registration,
        derived=lambda draft, record: (
            _departed(draft, record.broker_id) if record.in_controlled_shutdown > 0 else _nothing()
        ),
        key=lambda record: (_BROKER, record.broker_id),
    )
)

BrokerEvent = RegisterBrokerRecord | FenceBrokerRecord | UnfenceBrokerRecord | BrokerRegistrationChangeRecord
"""The records from which partition changes are derived."""


@message(name="RegisterControllerRecord", versions="0", flexible="0+")
class RegisterControllerRecord(MetadataRecord):
    """A controller has started."""

    controller_id: Int32
    incarnation_id: Uuid
    zk_migration_ready: bool
    end_points: tuple[RecordedEndpoint, ...]
    features: tuple[RecordedFeature, ...]


def _register_controller(draft: ImageDraft, record: RegisterControllerRecord) -> None:
    controller_id = BrokerId(record.controller_id)
    draft.controllers[controller_id] = ControllerImage(
        controller_id=controller_id,
        incarnation_id=record.incarnation_id,
        endpoints=_endpoints(record.end_points),
        features=_features(record.features),
    )


def controller_registration(
    controller_id: int, incarnation_id: bytes, endpoints: Iterable[Endpoint], features: Iterable[SupportedFeature]
) -> RegisterControllerRecord:
    """The record that states a controller."""
    return RegisterControllerRecord(
        controller_id=controller_id,
        incarnation_id=incarnation_id,
        zk_migration_ready=False,
        end_points=recorded_endpoints(endpoints),
        features=recorded_features(features),
    )


def _write_controllers(image: ClusterImage) -> Iterator[RegisterControllerRecord]:
    for controller in image.controllers.values():
        yield controller_registration(
            controller.controller_id, controller.incarnation_id, controller.endpoints, controller.features
        )


KINDS.add(
    RecordKind(
        number=_CONTROLLER,
        record=RegisterControllerRecord,
        apply=_register_controller,
        key=lambda record: (_CONTROLLER, record.controller_id),
        value=lambda state, key: state.controllers.get(key[1]),
        write=_write_controllers,
        place=2,
    )
)


def _endpoints(endpoints: Iterable[RecordedEndpoint]) -> tuple[Endpoint, ...]:
    return tuple(
        Endpoint(listener_name=e.name, host=e.host, port=e.port, security_protocol=e.security_protocol)
        for e in endpoints
    )


def _features(features: Iterable[RecordedFeature]) -> tuple[SupportedFeature, ...]:
    return tuple(SupportedFeature(f.name, f.min_supported_version, f.max_supported_version) for f in features)
