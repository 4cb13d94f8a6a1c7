"""The echo answers with as many bytes as a frame asks for."""

import pytest

from benchmarks.peers.echo import echo, frame


@pytest.mark.parametrize(("request_bytes", "answer_bytes"), [(8, 4), (100, 76), (1_000_003, 17), (64, 700_001)])
def test_a_frame_is_as_long_as_it_says_and_its_answer_as_long_as_it_asks(request_bytes: int, answer_bytes: int) -> None:
    sent = frame(request_bytes, answer_bytes)
    assert len(sent) == request_bytes
    with echo() as server:
        for _ in range(2):
            server.wire.socket.sendall(sent)
            assert len(server.wire.receive()) + 4 == answer_bytes


def test_an_exchange_has_cpu_time() -> None:
    with echo() as server:
        assert 0 < server.cpu_seconds(100, 100, 50) < 1
