"""The class of `replica.selector.class`: found, made and configured when the node starts, closed when it stops."""

import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib import import_module
from typing import Final

from tailrace.model.errors import ErrorCode, KafkaError
from tailrace.node.settings.config import NodeConfig
from tailrace.replication.replica_selector import LeaderSelector, RackAwareReplicaSelector, ReplicaSelector

_logger = logging.getLogger("tailrace.node")

NAME: Final = "replica.selector.class"
_OWN: Final[Mapping[str, type[ReplicaSelector]]] = {
    name: selector
    for selector in (LeaderSelector, RackAwareReplicaSelector)
    for name in (
        selector.__name__,
        f"tailrace:{selector.__name__}",
        f"org.apache.kafka.common.replica.{selector.__name__}",
    )
}
_METHODS: Final = ("configure", "select", "close")


def load_selector(config: NodeConfig) -> ReplicaSelector:
    """The configured selector; `LeaderSelector` if the setting has no value.

    Raises KafkaError(INVALID_CONFIG) for any fault: a node with another selector than configured would be hard to
    notice.
    """
    text = config.text(NAME)
    if not text:
        return LeaderSelector()
    own = _OWN.get(text)
    selector = own() if own is not None else _made(text)
    with _refused_if_it_raises(text, "configure"):
        selector.configure(
            {entry.setting.name: entry.value for entry in config.entries() if not entry.setting.sensitive}
        )
    return selector


def _made(text: str) -> ReplicaSelector:
    module_name, separator, class_name = text.partition(":")
    if not (separator and module_name and class_name):
        raise _refusal(text, f"say package.module:Class, or one of {', '.join(sorted(_OWN))}")
    with _refused_if_it_raises(text, f"import of {module_name}"):
        module = import_module(module_name)
    found = getattr(module, class_name, None)
    if not isinstance(found, type):
        raise _refusal(text, f"{module_name} has no class {class_name}")
    missing = [name for name in _METHODS if not callable(getattr(found, name, None))]
    if missing:
        raise _refusal(text, f"the class has no method {', '.join(missing)}; see tailrace.ReplicaSelector")
    with _refused_if_it_raises(text, "its constructor"):
        selector: ReplicaSelector = found()
    return selector


@contextmanager
def _refused_if_it_raises(text: str, what: str) -> Iterator[None]:
    """Turn any exception into a refusal. SystemExit is refused too, as otherwise the node would end as after a signal
    to stop. KeyboardInterrupt passes, since it comes from a user."""
    try:
        yield
    except KeyboardInterrupt:
        raise
    except BaseException as fault:
        raise _refusal(text, f"{what} raised {_described(fault)}") from fault


def close_selector(selector: ReplicaSelector) -> None:
    """Close the selector. An exception of any kind is logged: the stop of the node goes on."""
    try:
        selector.close()
    except BaseException as fault:  # noqa: BLE001 - code of users
        _logger.warning(
            "event=replica-selector-not-closed class=%s fault=%r", type(selector).__qualname__, _described(fault)
        )


def _described(fault: BaseException) -> str:
    try:
        return f"{type(fault).__name__}: {fault}"[:300]
    except BaseException:  # noqa: BLE001 - code of users, too
        return type(fault).__name__


def _refusal(text: str, why: str) -> KafkaError:
    return KafkaError(ErrorCode.INVALID_CONFIG, f"{NAME}={text}: {why}")
