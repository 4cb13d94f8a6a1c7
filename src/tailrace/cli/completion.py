"""Completion of names in the shell: the topics and groups of the cluster that the line, or the environment, names.

A user waits at the keyboard: an answer is complete and soon, or there is none. Nothing is ever printed to stderr.
"""

import logging
import os
import re
import threading
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Final

import typer

from tailrace.model.errors import KafkaError

if TYPE_CHECKING:
    from tailrace.client.blocking.admin import Admin

_TIMEOUT_MS: Final = 400
"""The longest wait for a connection, and for an answer, unless the variable says another time."""
_VARIABLE: Final = "TAILRACE_COMPLETION_TIMEOUT_MS"
_MORE_S: Final = 0.3
"""The rest of the longest time of all waits together, with the decoding of what a node sends."""
_PLAIN: Final = re.compile(r"[A-Za-z0-9._][A-Za-z0-9._-]*")
"""Names that a shell takes as they are. Any client may name a group, and zsh evaluates what a completion prints."""


def topic_names(context: typer.Context, incomplete: str) -> list[str]:
    """The topics whose names begin so. Internal topics belong to a name that begins with `_`."""
    wants_internal = incomplete.startswith("_")

    def names(admin: "Admin") -> list[str]:
        topics = admin.list_topics(include_internal=wants_internal)
        return [topic.name for topic in topics if wants_internal or not topic.name.startswith("__")]

    return _candidates(context, incomplete, names)


def group_names(context: typer.Context, incomplete: str) -> list[str]:
    """The groups whose names begin so."""
    return _candidates(context, incomplete, lambda admin: [listing.group for listing in admin.list_groups()])


def _candidates(context: typer.Context, incomplete: str, names: "Callable[[Admin], Iterable[str]]") -> list[str]:
    """The plain names that begin so and are not on the line yet; none without a cluster."""
    servers = context.params.get("bootstrap_server")
    if servers is None:  # the address on the line is none
        return []
    given = {name for value in context.params.values() if isinstance(value, list | tuple) for name in value}
    found: Iterable[str] = ()
    with suppress(KafkaError):
        found = _asked(servers, names)
    return [name for name in found if name.startswith(incomplete) and name not in given and _PLAIN.fullmatch(name)]


def _asked(servers: str, names: "Callable[[Admin], Iterable[str]]") -> Iterable[str]:
    """The names that the cluster answers with, at the first attempt. Raises KafkaError."""
    from tailrace.cli.output import cluster_of
    from tailrace.client.blocking.admin import Admin

    logging.disable()  # a warning of a client would go to stderr
    given = os.environ.get(_VARIABLE, "")
    timeout_ms = int(given) if given.isdecimal() else _TIMEOUT_MS
    # Nothing else ends the decoding of a hostile answer.
    limit = threading.Timer(timeout_ms / 1000 + _MORE_S, os._exit, (0,))
    limit.daemon = True
    limit.start()
    settings = replace(
        cluster_of(servers),
        bootstrap_timeout_ms=0,
        default_api_timeout_ms=0,
        socket_connection_setup_timeout_ms=timeout_ms,
        request_timeout_ms=timeout_ms,
    )
    try:
        with Admin.of(settings) as admin:
            return names(admin)
    finally:
        limit.cancel()


Topic = Annotated[str, typer.Argument(metavar="TOPIC", show_default=False, autocompletion=topic_names)]
Group = Annotated[str, typer.Argument(metavar="GROUP", show_default=False, autocompletion=group_names)]
