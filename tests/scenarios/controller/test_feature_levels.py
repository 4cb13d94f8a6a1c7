"""Levels of features, which all nodes of a cluster have to support (KIP-584)."""

import pytest

from scenarios.controller.leadership_cluster import LeadershipCluster
from tailrace.metadata.broker_commands import (
    FeatureUpdate,
    RegisterBroker,
    RegisterController,
    UnregisterBroker,
    UpdateFeatures,
)
from tailrace.metadata.image import SupportedFeature
from tailrace.model.errors import ErrorCode, KafkaError
from tailrace.model.ids import BrokerId


def test_a_registration_of_a_release_that_does_not_know_the_metadata_version_is_refused(
    cluster: LeadershipCluster,
) -> None:
    old = (SupportedFeature("metadata.version", 20, 25),)
    for command in (
        RegisterBroker(broker_id=BrokerId(7), incarnation_id=bytes(16), endpoints=(), features=old),
        RegisterController(controller_id=BrokerId(7), incarnation_id=bytes(16), endpoints=(), features=old),
    ):
        with pytest.raises(KafkaError) as refusal:
            cluster.do(command)
        assert refusal.value.code is ErrorCode.UNSUPPORTED_VERSION
        assert "knows 20 to 25" in refusal.value.detail


def level_update(level: int, feature: str = "metadata.version", **options: bool) -> UpdateFeatures:
    return UpdateFeatures(
        updates=(FeatureUpdate(feature=feature, level=level, allows_downgrade=options.get("downgrade", False)),),
        validate_only=options.get("validate_only", False),
    )


def test_the_metadata_version_is_raised_when_all_nodes_support_it(cluster: LeadershipCluster) -> None:
    """A rolling upgrade: the log was begun by the release before."""
    cluster.do(level_update(26, downgrade=True))
    old = (SupportedFeature("metadata.version", 20, 26), SupportedFeature("transaction.version", 0, 2))
    cluster.do(RegisterBroker(broker_id=BrokerId(4), incarnation_id=bytes(16), endpoints=(), features=old))
    with pytest.raises(KafkaError) as refusal:
        cluster.do(level_update(27))
    assert refusal.value.code is ErrorCode.INVALID_UPDATE_VERSION
    assert "broker 4 knows 20 to 26; start it with a release that knows it, or unregister it" in refusal.value.detail
    cluster.do(UnregisterBroker(broker_id=BrokerId(4)))
    cluster.do(level_update(27, validate_only=True))
    assert cluster.machine.image.metadata_version == 26
    cluster.do(level_update(27))
    assert cluster.machine.image.metadata_version == 27


def test_a_controller_that_does_not_know_a_feature_level_bars_it(cluster: LeadershipCluster) -> None:
    cluster.do(level_update(26, downgrade=True))
    old = (SupportedFeature("metadata.version", 20, 26), SupportedFeature("transaction.version", 0, 2))
    command = RegisterController(controller_id=BrokerId(7), incarnation_id=bytes(16), endpoints=(), features=old)
    cluster.do(command)
    with pytest.raises(KafkaError) as refusal:
        cluster.do(level_update(27))
    assert "controller 7 knows 20 to 26; start it with a release that knows it first" in refusal.value.detail


@pytest.mark.parametrize(
    "refused", [level_update(28), level_update(0), level_update(25), level_update(1, "kraft.version"), level_update(-3)]
)
def test_an_impossible_feature_level_is_refused(cluster: LeadershipCluster, refused: UpdateFeatures) -> None:
    with pytest.raises(KafkaError) as refusal:
        cluster.do(refused)
    assert refusal.value.code is ErrorCode.INVALID_UPDATE_VERSION
    assert refusal.value.detail
