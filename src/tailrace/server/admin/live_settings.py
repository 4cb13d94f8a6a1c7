"""The settings of this broker, which the cluster may change while it runs."""

from collections.abc import Mapping
from typing import Protocol

from tailrace.metadata.image import EMPTY_IMAGE, ClusterImage, ConfigResource, ResourceType
from tailrace.server.admin.config_entries import BrokerSettings


class AdjustableSettings(BrokerSettings, Protocol):
    """The settings that `node` has read, before any change."""

    def with_dynamic(self, *, of_all: Mapping[str, str], of_this: Mapping[str, str]) -> BrokerSettings:
        """These settings under those of all brokers, and above them those of this one."""
        ...


class LiveSettings:
    """The settings in force under an image of the cluster."""

    def __init__(self, configured: AdjustableSettings) -> None:
        self.node_id = configured.node_id
        self._configured = configured
        self._resources = tuple(ConfigResource(ResourceType.BROKER, name) for name in ("", str(configured.node_id)))
        self._overrides = self._overrides_in(EMPTY_IMAGE)
        self._in_force: BrokerSettings = configured

    def at(self, image: ClusterImage) -> BrokerSettings:
        """The settings in force. Cheap while they stay the same."""
        overrides = self._overrides_in(image)
        if overrides != self._overrides:
            of_all, of_this = overrides
            self._in_force = self._configured.with_dynamic(of_all=of_all, of_this=of_this)
            self._overrides = overrides
        return self._in_force

    def concerns(self, resource: ConfigResource) -> bool:
        """Whether this resource's settings are among those of this broker."""
        return resource in self._resources

    def _overrides_in(self, image: ClusterImage) -> tuple[Mapping[str, str], Mapping[str, str]]:
        of_all, of_this = self._resources
        return image.overrides(of_all), image.overrides(of_this)
