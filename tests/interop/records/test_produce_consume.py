"""Every client's records, in every codec, are read back by every client as they were sent."""

from uuid import uuid4

import pytest

from interop.clients import CLIENTS, CODECS, ForeignClient, absent, as_kept, knows
from interop.librdkafka import Message
from tailrace.client.blocking import Admin
from tailrace.model.partitions import TopicPartition
from tailrace.testing import Cluster

MESSAGES = (
    Message(b"key", b"value"),
    Message(None, b"no key"),
    Message(b"gone", None),
    Message("ключ".encode(), "значение 値 🙂".encode()),
    Message(b"h", b"with headers", (("trace", b"42"), ("empty", b""), ("trace", b"again"))),
    Message(b"long", b"Tailrace " * 20_000),
)


EXCHANGES = [
    pytest.param(client, known, id=f"{client.name}-{','.join(known)}", marks=[pytest.mark.always] if is_first else [])
    for client in CLIENTS
    for is_first, codecs in ((True, CODECS[:2]), (False, CODECS[2:]))
    if (known := tuple(codec for codec in codecs if knows(client, codec)))
]
"""The producers and their codecs: first the codecs that every client has, which every run tries."""


@pytest.mark.interop
@pytest.mark.parametrize(("client", "codecs"), EXCHANGES)
def test_every_client_reads_the_records_of_each_other_client(
    tailrace_cluster: Cluster, client: ForeignClient, codecs: tuple[str, ...]
) -> None:
    if why := absent(client):
        pytest.skip(why)
    bootstrap, topic = tailrace_cluster.bootstrap_servers, f"exchange-{uuid4()}"
    with Admin(bootstrap) as admin:
        admin.create_topics({topic: 1})
        for codec in codecs:
            before = stored_bytes(admin, topic)
            client.produce(bootstrap, topic, MESSAGES, codec)
            is_small = stored_bytes(admin, topic) - before < sum(len(m.value or b"") for m in MESSAGES) / 2
            assert is_small == (codec != "none"), f"{client.name} must use {codec}"
    sent = MESSAGES * len(codecs)
    for reader in CLIENTS:
        if absent(reader) or not all(knows(reader, codec) for codec in codecs):
            continue
        read = reader.consume(bootstrap, topic, len(sent))
        assert as_kept(read, client, reader) == as_kept(sent, client, reader), (
            f"{client.name} wrote, {reader.name} read"
        )


def stored_bytes(admin: Admin, topic: str) -> int:
    ((directory,),) = admin.describe_log_dirs().values()
    return directory.partitions[TopicPartition(topic, 0)].size_bytes
