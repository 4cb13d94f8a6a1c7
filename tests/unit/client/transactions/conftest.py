"""Plays a scene of a transactional producer."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from tailrace.client import producer as producer_module
from tailrace.client.producer import AsyncProducer
from testkit.clients.scripted_transactions import ScriptedTransactions
from unit.client.transactions.producer_scenes import BILLS, ORDERS, Play


@pytest.fixture
def play(monkeypatch: pytest.MonkeyPatch) -> Play:
    """Begins a scene of a producer with `transactional_id` "t" and its node."""

    @asynccontextmanager
    async def play(
        *, version: int = 2, newest: dict[type[Any], int] | None = None, **settings: Any
    ) -> AsyncIterator[tuple[ScriptedTransactions, AsyncProducer]]:
        nodes = ScriptedTransactions(ORDERS, BILLS, version=version, newest=newest)
        monkeypatch.setattr(producer_module, "Router", lambda *_, **__: nodes)
        nodes.describe()
        wanted = {"transactional_id": "t", "linger_ms": 0, **settings}
        async with asyncio.timeout(50), AsyncProducer("127.0.0.1:1", **wanted) as producer:
            yield nodes, producer

    return play
