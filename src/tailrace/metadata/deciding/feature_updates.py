"""Changes of the levels of features (KIP-584, pure). The error codes are those of Kafka's controllers."""

from collections import Counter
from collections.abc import Iterator

from tailrace.metadata.broker_commands import OWN_FEATURES, CarriedOut, FeatureUpdate, UpdateFeatures
from tailrace.metadata.image import ClusterImage, SupportedFeature
from tailrace.metadata.records.cluster import FeatureLevelRecord
from tailrace.metadata.records.kinds import MetadataRecord
from tailrace.model.errors import ErrorCode, KafkaError
from tailrace.model.machines import Decision


class FeatureUpdates:
    """The decision on an UpdateFeatures command."""

    def __init__(self, image: ClusterImage) -> None:
        self._image = image

    def decide(self, command: UpdateFeatures) -> Decision[MetadataRecord, CarriedOut]:
        """A record per level that changes. Raises KafkaError INVALID_REQUEST, INVALID_UPDATE_VERSION."""
        names = [update.feature for update in command.updates]
        if len(set(names)) < len(names):
            twice = next(name for name, times in Counter(names).items() if times > 1)
            raise KafkaError(ErrorCode.INVALID_REQUEST, f"feature {twice!r} is named twice")
        for update in command.updates:
            self._check(update)
        records = tuple(
            FeatureLevelRecord(name=update.feature, feature_level=update.level)
            for update in command.updates
            if update.level != self._image.features.get(update.feature, 0)
        )
        return Decision(records=() if command.validate_only else records, response=CarriedOut())

    def _check(self, update: FeatureUpdate) -> None:
        if update.feature not in {feature.name for feature in OWN_FEATURES}:
            raise _refused(f"there is no feature {update.feature!r}; those that can be changed: {_own_names()}")
        if update.level < 0:
            raise _refused(f"{update.feature}: {update.level} is no level; 0 removes a feature that may be absent")
        for process, features, way_out in self._processes():
            supported = next((feature for feature in features if feature.name == update.feature), None)
            if supported is None or not supported.min_version <= update.level <= supported.max_version:
                knows = "nothing of it" if supported is None else f"{supported.min_version} to {supported.max_version}"
                raise _refused(f"{update.feature} {update.level}: {process} knows {knows}; {way_out} first")
        before = self._image.features.get(update.feature, 0)
        if update.level < before:
            if not update.allows_downgrade:
                raise _refused(
                    f"{update.feature} is at {before}, and {update.level} would be a downgrade, which the request does"
                    " not allow; ask for a safe downgrade"
                )
        elif update.level > before and update.allows_downgrade:
            raise _refused(f"{update.feature} is at {before}: {update.level} is no downgrade; ask for an upgrade")

    def _processes(self) -> Iterator[tuple[str, tuple[SupportedFeature, ...], str]]:
        """Every controller and broker: its name, the features that it supports, and the advice if it does not support a
        level."""
        upgrade = "start it with a release that knows it"
        yield "this controller", OWN_FEATURES, upgrade
        for controller in self._image.controllers.values():
            yield f"controller {controller.controller_id}", controller.features, upgrade
        for broker in self._image.brokers.values():
            yield f"broker {broker.broker_id}", broker.features, f"{upgrade}, or unregister it,"


def _own_names() -> str:
    return ", ".join(feature.name for feature in OWN_FEATURES)


def _refused(fault: str) -> KafkaError:
    return KafkaError(ErrorCode.INVALID_UPDATE_VERSION, fault)
