"""Readers of all partitions of a topic, with a fetch session each."""

from tailrace.fetch_session.session import FetchSession
from testkit.nodes.data_path import DataPath
from testkit.nodes.session_reader import SessionReader

ALL = {0: 0, 1: 0, 2: 0, 3: 0}


def idle(reader: SessionReader) -> SessionReader:
    """Open a session over all partitions, and fetch once more: nothing is new then."""
    reader.open(ALL)
    reader.next()
    return reader


def session_of(node: DataPath) -> FetchSession:
    """The only session of the node."""
    (session,) = node.broker.fetch_sessions.cache.sessions()
    return session
