"""Fixtures of tests of hostile clients."""

import logging
from collections.abc import Iterator

import pytest


@pytest.fixture
def no_handler_failed(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """A request that makes a handler raise anything but a KafkaError has found a fault of ours.

    Lines of other loggers in this process, such as threads of clients of other tests, are no fault of the node.
    """
    yield
    failures = [
        record
        for record in caplog.get_records("call")
        if record.levelno >= logging.ERROR and record.name.partition(".")[0] == "tailrace"
    ]
    assert not failures, [logging.Formatter().format(record) for record in failures]
