"""UpdateFeatures and UnregisterBroker: what neither node does, since both nodes have to go on as they are."""

from interop.differential.catalogue.preparation import LIMIT_MS
from interop.differential.script import Script, ask, every_version
from tailrace.protocol.messages.registrations import FeatureUpdateKey, UnregisterBrokerRequest, UpdateFeaturesRequest

NAME = "metadata.version"
UPGRADE, SAFE_DOWNGRADE, UNSAFE_DOWNGRADE = 1, 2, 3


def features() -> Script:
    yield from _levels()
    yield from _types()
    for broker_id in (7, -1, 2**31 - 1):
        yield from ask(f"broker {broker_id} is unregistered", UnregisterBrokerRequest(broker_id=broker_id))


def update(*wanted: tuple[str, int, int], validate_only: bool = False) -> UpdateFeaturesRequest:
    """A request to give features these levels, by these types of upgrade."""
    updates = tuple(
        FeatureUpdateKey(
            feature=name, max_version_level=level, upgrade_type=kind, allow_downgrade=kind == SAFE_DOWNGRADE
        )
        for name, level, kind in wanted
    )
    return UpdateFeaturesRequest(timeout_ms=LIMIT_MS, feature_updates=updates, validate_only=validate_only)


def _levels() -> Script:
    everything = every_version(UpdateFeaturesRequest)
    yield from ask("no feature is updated", update(), *everything)
    for name, level in ((NAME, 999), (NAME, 6), (NAME, 0), (NAME, -1), ("no.such.feature", 1), ("", 1)):
        yield from ask(f"{name} is raised to {level}", update((name, level, UPGRADE)), *everything)
        yield from ask(f"{name} is lowered to {level}", update((name, level, SAFE_DOWNGRADE)), *everything)
    both = update((NAME, 999, UPGRADE), ("no.such.feature", 1, UPGRADE))
    yield from ask("two features are updated", both, *everything)
    yield from ask("a level is tried", update((NAME, 999, UPGRADE), validate_only=True), 1, 2)
    for level in (1, 0, -1):
        lowered = update(("transaction.version", level, SAFE_DOWNGRADE), validate_only=True)
        yield from ask(f"transaction.version {level} is tried", lowered, 1, 2)


def _types() -> Script:
    for kind in (0, UNSAFE_DOWNGRADE, 4, -1):
        yield from ask(f"a level by type {kind}", update((NAME, 999, kind)), 1, 2)
