"""Settings that hold for the whole cluster: elections depend on them, which every node derives alike from the log.

A node's own value of one becomes a setting of all brokers when the node founds the log, and so does
`min.insync.replicas` with its default, as `kafka-storage format` does it: a client sees that it is the cluster's. Later
it changes nothing, and the node says so.
"""

import logging

from tailrace.metadata.deciding.config_changes import DECISIVE, MIN_IN_SYNC
from tailrace.metadata.image import ALL_BROKERS, ClusterImage
from tailrace.node.settings.config import NodeConfig
from tailrace.node.settings.table import BROKER_SETTINGS
from tailrace.server.admin.config_entries import ConfigSource

_logger = logging.getLogger("tailrace.node")


def founding_settings(config: NodeConfig) -> dict[str, str]:
    """The settings of all brokers in a new log: `min.insync.replicas`, and those in this node's own settings."""
    setting = BROKER_SETTINGS[MIN_IN_SYNC]
    default = setting.format(setting.default)
    assert default is not None, f"{MIN_IN_SYNC} always has a value"
    return {MIN_IN_SYNC: default, **_told(config)}


def _told(config: NodeConfig) -> dict[str, str]:
    told: dict[str, str] = {}
    for entry in config.entries():
        if entry.setting.name in DECISIVE and entry.source is ConfigSource.STATIC_BROKER_CONFIG:
            text = entry.setting.format(entry.value)
            assert text is not None, f"{entry.setting.name} always has a value"
            told[entry.setting.name] = text
    return told


def say_what_is_overruled(config: NodeConfig, image: ClusterImage) -> None:
    """Log each of them that this node has another value for than the cluster, and the way out."""
    agreed = image.overrides(ALL_BROKERS)
    for name, told in _told(config).items():
        value = agreed.get(name)
        if value is None:
            value = BROKER_SETTINGS[name].format(BROKER_SETTINGS[name].default)
        if told != value:
            _logger.warning(
                "event=setting-of-the-cluster-differs setting=%s here=%s cluster=%s"
                " way-out='kafka-configs --alter --entity-type brokers --entity-default --add-config %s=%s'",
                name,
                told,
                value,
                name,
                told,
            )
