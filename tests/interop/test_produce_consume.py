"""Every client's records, in every codec, are read back by every client as they were sent."""

import pytest

from interop.clients import CLIENTS, CODECS, Client, absent
from interop.librdkafka import Message
from tailrace.client.blocking import Admin
from tailrace.testing import Cluster

MESSAGES = (
    Message(b"key", b"value"),
    Message(None, b"no key"),
    Message(b"gone", None),
    Message("ключ".encode(), "значение 値 🙂".encode()),
    Message(b"h", b"with headers", (("trace", b"42"), ("empty", b""), ("trace", b"again"))),
    Message(b"long", b"Tailrace " * 20_000),
)


@pytest.mark.interop
@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("client", CLIENTS, ids=lambda client: client.name)
def test_what_one_client_sends_every_client_reads(tailrace_cluster: Cluster, client: Client, codec: str) -> None:
    if why := absent(client):
        pytest.skip(why)
    topic = f"exchange-{client.name}-{codec}"
    with Admin(tailrace_cluster.bootstrap_servers) as admin:
        admin.create_topics({topic: 1})
    client.produce(tailrace_cluster.bootstrap_servers, topic, MESSAGES, codec)
    for reader in CLIENTS:
        if absent(reader):
            continue
        read = reader.consume(tailrace_cluster.bootstrap_servers, topic, len(MESSAGES))
        assert tuple(read) == MESSAGES, f"{client.name} wrote, {reader.name} read"
