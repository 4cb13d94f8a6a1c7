"""The addresses of its listeners that a node advertises."""

import pytest

from tailrace.node.settings.config import NodeConfig


@pytest.mark.parametrize(
    ("settings", "address"),
    [
        ({"listeners": "127.0.0.1:9092"}, "PLAINTEXT://127.0.0.1:9092"),
        ({"listeners": "127.0.0.1:0"}, "PLAINTEXT://127.0.0.1:7"),
        ({"listeners": "localhost:0"}, "PLAINTEXT://127.0.0.1:7"),
        ({"listeners": "127.0.0.2:0"}, "PLAINTEXT://127.0.0.2:7"),
        ({"listeners": "[::1]:0"}, "PLAINTEXT://[::1]:7"),
        ({"listeners": "node.example:0", "listener.insecure.allow": "true"}, "PLAINTEXT://node.example:7"),
        ({"listeners": "127.0.0.1:0", "advertised.listeners": "localhost:0"}, "PLAINTEXT://localhost:7"),
        (
            {"listeners": ":0", "advertised.listeners": "db.example:1", "listener.insecure.allow": "true"},
            "PLAINTEXT://db.example:1",
        ),
    ],
)
def test_the_address_for_others_is_the_advertised_one_with_the_port_that_was_taken(
    settings: dict[str, str], address: str
) -> None:
    assert str(NodeConfig(settings).addresses.address_of("PLAINTEXT", taken_port=7)) == address
