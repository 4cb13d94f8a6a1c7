"""Resets of a group's offsets: the arguments that are refused before any request."""

import asyncio

import pytest

from tailrace.client.admin.offset_resets import reset_offsets
from tailrace.client.offsets import LATEST
from tailrace.client.router import Router
from tailrace.client.settings import ClientSettings
from tailrace.model.errors import ErrorCode, KafkaError


@pytest.mark.parametrize("ways", [{}, {"offset": 3, "shift_by": -1}, {"to": LATEST, "offset": 0}])
def test_a_reset_takes_one_way_to_say_the_offset(ways: dict[str, int]) -> None:
    async def reset() -> None:
        router = Router(ClientSettings("127.0.0.1:1", bootstrap_timeout_ms=0))
        await reset_offsets(router, "g", to=ways.get("to"), offset=ways.get("offset"), shift_by=ways.get("shift_by"))

    with pytest.raises(KafkaError, match="takes one of `to`, `offset` and `shift_by`") as refused:
        asyncio.run(reset())
    assert refused.value.code is ErrorCode.INVALID_REQUEST
