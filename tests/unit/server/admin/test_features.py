"""UpdateFeatures (57), and the features in ApiVersions (18), on a node that is its own controller."""

import pytest

from tailrace.metadata.feature_levels import METADATA_VERSION, OLDEST_METADATA_VERSION
from tailrace.model.errors import ErrorCode
from tailrace.protocol.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from tailrace.protocol.messages.registrations import FeatureUpdateKey, UpdateFeaturesRequest, UpdateFeaturesResponse
from tailrace.testing.disk import SimulatedDisk
from testkit.nodes.admin_path import AdminPath

NAME = "metadata.version"
UPGRADE, SAFE_DOWNGRADE, UNSAFE_DOWNGRADE = 1, 2, 3


@pytest.fixture
def node() -> AdminPath:
    return AdminPath("/data", files=SimulatedDisk())


def update(
    node: AdminPath, level: int, kind: int = UPGRADE, *, name: str = NAME, version: int = 2, validate_only: bool = False
) -> UpdateFeaturesResponse:
    wanted = FeatureUpdateKey(feature=name, max_version_level=level, upgrade_type=kind, allow_downgrade=kind != UPGRADE)
    request = UpdateFeaturesRequest(feature_updates=(wanted,), validate_only=validate_only)
    response = node.send(request, version).response
    assert isinstance(response, UpdateFeaturesResponse)
    return response


def announced(node: AdminPath, version: int = 4) -> ApiVersionsResponse:
    request = ApiVersionsRequest(client_software_name="test", client_software_version="1")
    response = node.send(request, version).response
    assert isinstance(response, ApiVersionsResponse)
    return response


def level_of(node: AdminPath) -> int:
    levels = {
        each.name: (each.min_version_level, each.max_version_level) for each in announced(node).finalized_features
    }
    assert levels.keys() == {NAME, "transaction.version"}
    assert levels["transaction.version"] == (2, 2)
    first, last = levels[NAME]
    assert first == last
    return last


@pytest.mark.parametrize("version", [3, 4])
def test_supported_and_finalized_levels_are_announced_with_the_offset_of_the_metadata(
    node: AdminPath, version: int
) -> None:
    response = announced(node, version)
    supported = {each.name: (each.min_version, each.max_version) for each in response.supported_features}
    assert supported[NAME] == (OLDEST_METADATA_VERSION, METADATA_VERSION)
    # Before version 4 clients stumble over a level 0 (KAFKA-17492).
    assert supported.get("transaction.version") == (None if version < 4 else (0, 2))
    assert level_of(node) == METADATA_VERSION
    assert response.finalized_features_epoch == node.log.end_offset - 1
    node.create_topics("orders")
    assert announced(node).finalized_features_epoch == node.log.end_offset - 1 > response.finalized_features_epoch


def test_before_version_3_there_are_no_features(node: AdminPath) -> None:
    response = announced(node, 2)
    assert (response.supported_features, response.finalized_features) == ((), ())


@pytest.mark.parametrize("version", [0, 1, 2])
@pytest.mark.parametrize("kind", [SAFE_DOWNGRADE, UNSAFE_DOWNGRADE])
def test_a_level_goes_down_and_up_again(node: AdminPath, version: int, kind: int) -> None:
    down = update(node, OLDEST_METADATA_VERSION, kind, version=version)
    assert down.error_code == 0, down.error_message
    assert level_of(node) == OLDEST_METADATA_VERSION
    up = update(node, METADATA_VERSION, version=version)
    assert up.error_code == 0, up.error_message
    assert level_of(node) == METADATA_VERSION
    assert [(each.feature, each.error_code) for each in up.results] == ([(NAME, 0)] if version < 2 else [])


def test_a_question_changes_nothing(node: AdminPath) -> None:
    end_offset = node.log.end_offset
    assert update(node, OLDEST_METADATA_VERSION, SAFE_DOWNGRADE, validate_only=True).error_code == 0
    assert update(node, METADATA_VERSION, validate_only=True).error_code == 0
    assert (level_of(node), node.log.end_offset) == (METADATA_VERSION, end_offset)


@pytest.mark.parametrize("version", [0, 1, 2])
@pytest.mark.parametrize(
    ("level", "kind", "why"),
    [
        (METADATA_VERSION + 1, UPGRADE, "this controller knows 26 to"),
        (OLDEST_METADATA_VERSION, UPGRADE, "would be a downgrade"),
        (0, SAFE_DOWNGRADE, "this controller knows 26 to"),
        (-1, UPGRADE, "is no level"),
    ],
)
def test_a_level_that_cannot_be_is_refused_at_the_top(
    node: AdminPath, version: int, level: int, kind: int, why: str
) -> None:
    response = update(node, level, kind, version=version)
    assert (response.error_code, response.results) == (ErrorCode.INVALID_UPDATE_VERSION, ())
    assert why in (response.error_message or "")
    assert level_of(node) == METADATA_VERSION


def test_a_level_that_is_announced_can_be_had_and_0_is_none(node: AdminPath) -> None:
    def level() -> int | None:
        levels = {each.name: each.max_version_level for each in announced(node).finalized_features}
        return levels.get("transaction.version")

    for wanted, kind in ((1, SAFE_DOWNGRADE), (0, SAFE_DOWNGRADE), (2, UPGRADE), (0, UNSAFE_DOWNGRADE)):
        response = update(node, wanted, kind, name="transaction.version")
        assert response.error_code == 0, response.error_message
        assert level() == (wanted or None)
    assert update(node, 0, name="transaction.version").error_code == 0, "it is there already"


def test_a_downgrade_does_not_go_up(node: AdminPath) -> None:
    assert update(node, OLDEST_METADATA_VERSION, SAFE_DOWNGRADE).error_code == 0
    response = update(node, METADATA_VERSION, SAFE_DOWNGRADE)
    assert response.error_code == ErrorCode.INVALID_UPDATE_VERSION
    assert "is no downgrade" in (response.error_message or "")


@pytest.mark.parametrize("kind", [0, 4, -1])
def test_a_type_of_upgrade_that_does_not_exist_is_refused(node: AdminPath, kind: int) -> None:
    assert update(node, METADATA_VERSION, kind, version=1).error_code == ErrorCode.INVALID_UPDATE_VERSION


def test_an_unknown_feature_is_refused_and_the_known_ones_are_named(node: AdminPath) -> None:
    response = update(node, 1, name="eligible.leader.replicas.version")
    assert response.error_code == ErrorCode.INVALID_UPDATE_VERSION
    assert NAME in (response.error_message or "")


def test_of_several_features_all_change_or_none(node: AdminPath) -> None:
    down = FeatureUpdateKey(feature=NAME, max_version_level=OLDEST_METADATA_VERSION, upgrade_type=SAFE_DOWNGRADE)
    unknown = FeatureUpdateKey(feature="no.such", max_version_level=1)
    for updates, code in (
        ((down, unknown), ErrorCode.INVALID_UPDATE_VERSION),
        ((down, down), ErrorCode.INVALID_REQUEST),
        ((), ErrorCode.NONE),
    ):
        assert node.send(UpdateFeaturesRequest(feature_updates=updates), 1).response.error_code == code
    assert level_of(node) == METADATA_VERSION
