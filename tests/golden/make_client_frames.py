"""Makes tests/golden/client_frames.txt: requests as foreign clients send them, for the fuzz targets to start from.

    PYTHONPATH=tests:. python tests/golden/make_client_frames.py

A line is `client-api-version` and the frame in hex, without its length prefix: the first frame of each kind. Frames
hold times and made-up names, so a new run gives other bytes; that is no reason to keep the new frames.
"""

import asyncio
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import kafka.admin
from confluent_kafka.admin import AdminClient, ConfigResource, NewPartitions, NewTopic

from interop.clients import Aiokafka, ForeignClient, KafkaPython, Kcat
from interop.librdkafka import Confluent, Message
from tailrace.node.node import Node
from tailrace.node.settings.config import NodeConfig
from tailrace.protocol.registry import APIS
from tailrace.server.dispatch import Dispatcher

PATH = Path(__file__).with_name("client_frames.txt")
LONGEST_FRAME = 2_000


class FrameRecorder:
    """The first frame of each API and version, by client."""

    def __init__(self) -> None:
        self.client = ""
        self.frames: dict[str, bytes] = {}

    def note(self, frame: memoryview) -> None:
        key, version = int.from_bytes(frame[:2]), int.from_bytes(frame[2:4])
        if key in APIS and len(frame) <= LONGEST_FRAME:
            self.frames.setdefault(f"{self.client}-{APIS[key].name}-{version}", bytes(frame))


@contextmanager
def recorded_node(recorder: FrameRecorder) -> Iterator[str]:
    """A node in this process whose dispatcher shows every frame to the recorder; its address."""
    plain = Dispatcher.on_frame

    def on_frame(self: Dispatcher, connection: Any, slot: int, frame: memoryview) -> None:
        recorder.note(frame)
        plain(self, connection, slot, frame)

    Dispatcher.on_frame = on_frame  # type: ignore[method-assign]
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()

    def run(work: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(work, loop).result(60)

    async def make(directory: str) -> Node:
        config = NodeConfig({"dev.mode": "true", "listeners": "127.0.0.1:0", "log.dirs": directory})
        node = Node(config, on_fatal=print)
        await node.start()
        return node

    with tempfile.TemporaryDirectory() as directory:
        node = run(make(directory))
        try:
            yield f"127.0.0.1:{node.advertised[0].port}"
        finally:
            run(node.stop())
            loop.call_soon_threadsafe(loop.stop)
            thread.join()
            Dispatcher.on_frame = plain  # type: ignore[method-assign]


def use(client: ForeignClient, address: str) -> None:
    """Write, read, and be a member of a group."""
    messages = [Message(b"key", b"value %d" % number) for number in range(3)]
    client.produce(address, "orders", messages, "none")
    client.consume(address, "orders", 3)
    member = client.join(address, "orders", "group")
    for _ in range(40):
        if member.poll():
            break
    member.close()


def administer_with_librdkafka(address: str) -> None:
    admin = AdminClient({"bootstrap.servers": address})
    topic = ConfigResource(ConfigResource.Type.TOPIC, "made")
    calls: list[Callable[[], Any]] = [
        lambda: admin.create_topics([NewTopic("made", 1, 1, config={"retention.ms": "1000"})]),
        lambda: admin.create_partitions([NewPartitions("made", 2)]),
        lambda: admin.describe_configs([topic]),
        lambda: admin.delete_topics(["made"]),
        lambda: admin.delete_consumer_groups(["nobody"]),
        lambda: admin.describe_consumer_groups(["group"]),
    ]
    for call in calls:
        for future in call().values():
            future.exception(30)
    admin.list_consumer_groups().result(30)
    admin.describe_cluster().result(30)


def administer_with_kafka_python(address: str) -> None:
    admin = kafka.admin.KafkaAdminClient(bootstrap_servers=address)
    admin.create_topics([kafka.admin.NewTopic(name="made", num_partitions=1, replication_factor=1)])
    admin.describe_log_dirs()
    admin.list_group_offsets("group")
    admin.describe_groups(["group"])
    admin.delete_topics(["made"])
    admin.close()


def main() -> None:
    recorder = FrameRecorder()
    clients: list[ForeignClient] = [Confluent(), KafkaPython(), Aiokafka(), Kcat()]
    with recorded_node(recorder) as address:
        for client in clients:
            recorder.client = client.name
            use(client, address)
        recorder.client = "librdkafka-admin"
        administer_with_librdkafka(address)
        recorder.client = "kafka-python-admin"
        administer_with_kafka_python(address)
    lines = [f"{name} {frame.hex()}\n" for name, frame in sorted(recorder.frames.items())]
    PATH.write_text("# Requests of foreign clients: client-api-version, then hex.\n" + "".join(lines))
    print(f"{len(lines)} frames of {len({name.split('-')[-2] for name in recorder.frames})} APIs")  # noqa: T201


if __name__ == "__main__":
    main()
