"""Commands to the controller about a broker: from the broker itself, or from an administrator."""

from dataclasses import dataclass, field

from tailrace.metadata.commands import CommandOfBroker, ControllerCommand, ControllerResponse
from tailrace.metadata.feature_levels import (
    METADATA_VERSION,
    METADATA_VERSION_FEATURE,
    OLDEST_METADATA_VERSION,
    TRANSACTION_VERSION,
    TRANSACTION_VERSION_FEATURE,
)
from tailrace.metadata.image import BrokerImage, Endpoint, SupportedFeature
from tailrace.model.ids import BrokerId, ProducerId
from tailrace.model.proofs import NO_SECRET
from tailrace.model.sinks import SINKS_FEATURE

OWN_FEATURES = (
    SupportedFeature(METADATA_VERSION_FEATURE, OLDEST_METADATA_VERSION, METADATA_VERSION),
    SupportedFeature(TRANSACTION_VERSION_FEATURE, 0, TRANSACTION_VERSION),
)
"""The levels of each feature that this release supports."""
FEATURES_OF_BROKERS = (*OWN_FEATURES, SupportedFeature(SINKS_FEATURE, 1, 1))
"""`OWN_FEATURES`, and our extensions that all brokers must support. Every registration names the extensions; no
extension has a finalized level."""
NO_BROKER_EPOCH = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class RegisterBroker(ControllerCommand):
    """A broker has started. The broker stays fenced until it asks in a heartbeat to be unfenced, or until
    `UnfenceBroker`."""

    broker_id: BrokerId
    incarnation_id: bytes
    endpoints: tuple[Endpoint, ...]
    rack: str | None = None
    log_directories: tuple[bytes, ...] = ()
    features: tuple[SupportedFeature, ...] = FEATURES_OF_BROKERS
    previous_broker_epoch: int = NO_BROKER_EPOCH
    """The broker epoch in which the broker stopped, if the broker still has every acknowledged record (KIP-966); else
    -1."""
    secret: bytes = field(default=NO_SECRET, repr=False)
    """Proves that the sender is this broker, if its incarnation id needs that (`model.proofs`)."""
    directory_secret: bytes = field(default=NO_SECRET, repr=False)
    """Proves that the sender has these log directories, if their ids need that."""


def claimed_epoch(before: BrokerImage | None, *, directory_id: bytes, keeps_all: bool) -> int:
    """The `previous_broker_epoch` that a broker claims whose last registration is `before`, and whose only log
    directory now is `directory_id`.

    A broker with an empty directory can fetch its registration from the cluster, too: only the directory that was
    registered has the records that the broker had acknowledged.
    """
    if before is None or not keeps_all:
        return NO_BROKER_EPOCH
    is_the_same = not before.log_directories or directory_id in before.log_directories
    return before.broker_epoch if is_the_same else NO_BROKER_EPOCH


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerRegistered(ControllerResponse):
    """The registration, as later commands of the broker name it."""

    broker_epoch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerHeartbeat(CommandOfBroker):
    """A broker is alive, has applied the metadata log up to an offset, and asks for a state."""

    metadata_offset: int
    """The highest offset that the broker has applied."""
    wants_fence: bool = False
    wants_shutdown: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerStanding(ControllerResponse):
    """The answer to a broker's heartbeat."""

    is_caught_up: bool
    """Whether the broker has applied its own registration."""
    is_fenced: bool
    should_shut_down: bool
    """Whether the broker may stop: it leads nothing any more, and the other brokers know the new leaders."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UnfenceBroker(CommandOfBroker):
    """A registered broker is ready to lead."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FenceBroker(ControllerCommand):
    """A registered broker must not lead any more."""

    broker_id: BrokerId
    broker_epoch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class FenceSilentBroker(ControllerCommand):
    """Fence the broker that has been silent for longest, if its session has ended."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UnregisterBroker(ControllerCommand):
    """A broker will not come back."""

    broker_id: BrokerId


@dataclass(frozen=True, slots=True, kw_only=True)
class RegisterController(ControllerCommand):
    """The listeners of a controller and the features that it supports."""

    controller_id: BrokerId
    incarnation_id: bytes
    endpoints: tuple[Endpoint, ...]
    features: tuple[SupportedFeature, ...] = OWN_FEATURES
    secret: bytes = field(default=NO_SECRET, repr=False)
    """Proves that the sender is this controller, if its incarnation id needs that (`model.proofs`)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AllocateProducerIds(CommandOfBroker):
    """A broker needs more producer ids for its producers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerIdBlock(ControllerResponse):
    """A block of producer ids for one broker alone: `size` ids from `first` on."""

    first: ProducerId
    size: int


@dataclass(frozen=True, slots=True, kw_only=True)
class FinalizeMetadataVersion(ControllerCommand):
    """Write the metadata.version into the log, which decides the records that may follow. Does nothing if the log
    already has a version."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FeatureUpdate:
    """The level that one feature is to have in the whole cluster; 0 removes the feature."""

    feature: str
    level: int
    allows_downgrade: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdateFeatures(ControllerCommand):
    """Change finalized levels: either every change is made, or none."""

    updates: tuple[FeatureUpdate, ...]
    validate_only: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class CarriedOut(ControllerResponse):
    """The command has been carried out."""
