"""A fetch of a node in its session, and the end of the session (KIP-227). `reading.node_fetches` decides on both."""

import logging
from collections.abc import Sequence

from tailrace.client.reading.fetching import NEWEST, Fetched, FetchOptions
from tailrace.client.reading.node_fetches import NodeFetches
from tailrace.client.router import Router
from tailrace.model.errors import KafkaError
from tailrace.model.ids import BrokerId
from tailrace.net.connection import Connection
from tailrace.protocol.messages.fetch import FetchableTopicResponse, FetchRequest, FetchResponse, FetchTopic

USE = "fetch"
"""The use of a connection that waits for records."""
CLOSE_MS = 1_000
"""The longest wait for the end of a session."""

_logger = logging.getLogger("tailrace.client")


async def fetch_changes(
    connection: Connection, node_id: int, node: NodeFetches, options: FetchOptions, *, timeout_ms: int
) -> list[Fetched] | None:
    """The answers of the next fetch; None if the session has ended, and the next fetch is full.

    Raises KafkaError for a fault of the connection or of the whole fetch; the next fetch is full then, too.
    """
    version = connection.version_of(FetchRequest, node.max_version)
    request = node.request(options, version)
    _log_step("fetch", node_id, request, request.topics)
    try:
        response = await connection.ask(
            request, FetchResponse, timeout_ms=timeout_ms + options.max_wait_ms, max_version=version
        )
    except KafkaError:
        node.failed()
        raise
    _log_step("answer", node_id, request, response.responses)
    return node.answered(response, options)


async def end_session(router: Router, node_id: int, node: NodeFetches) -> None:
    """Ask the broker to close the session, if there is a session and an open connection. Raises KafkaError."""
    request, broker = node.close(), router.view.brokers.get(BrokerId(node_id))
    if request is None or broker is None:
        return
    # On the connection of the fetches the request would wait behind the cancelled fetch.
    connection = router.open_connection(broker, "") or router.open_connection(broker, USE)
    if connection is not None:
        _log_step("close", node_id, request, ())
        await connection.ask(request, FetchResponse, timeout_ms=CLOSE_MS, max_version=NEWEST)


def _log_step(
    step: str, node_id: int, request: FetchRequest, topics: Sequence[FetchTopic | FetchableTopicResponse]
) -> None:
    if _logger.isEnabledFor(logging.DEBUG):
        _logger.debug(
            "node %d, session %d, epoch %d: %s, %d partitions, %d forgotten",
            node_id,
            request.session_id,
            request.session_epoch,
            step,
            sum(len(topic.partitions) for topic in topics),
            sum(len(topic.partitions) for topic in request.forgotten_topics_data),
        )
