"""SIGTERM under load: a node that stops answers everything that it has written, and then closes its connections.

Else a producer that does not repeat itself would take for lost what is in the log.
"""

import asyncio

import pytest

from tailrace.client.blocking import Admin
from tailrace.model.partitions import TopicPartition
from tailrace.net.connection import Address, Connection, connect, parse_addresses
from tailrace.protocol.messages.fetch import FetchPartition, FetchRequest, FetchResponse, FetchTopic
from tailrace.protocol.messages.produce import PartitionProduceData, ProduceRequest, ProduceResponse, TopicProduceData
from tailrace.testing import Cluster
from testkit.nodes.data_path import batch_of

CONNECTIONS = 8
IN_FLIGHT = 20
ENOUGH = 1_000
"""Acknowledgements before the stop."""
MAX_WAIT_MS = 120_000
LATEST = -1


class PipelinedLoad:
    """Producers that keep their connections full, and how many of their records were acknowledged."""

    def __init__(self) -> None:
        self.acknowledged = 0
        self.enough = asyncio.Event()

    async def run(self, address: Address, *, behind_a_fetch: bool) -> None:
        """Until the node closes the connection."""
        connection = await connect(address, client_id="stop")
        if behind_a_fetch:
            _wait_for_records(connection)
        room = asyncio.Semaphore(IN_FLIGHT)

        def answered(answer: asyncio.Future[ProduceResponse]) -> None:
            room.release()
            if answer.exception() is None:
                self._take(answer.result())

        while connection.is_open:
            await room.acquire()
            connection.send(_one_record(), ProduceResponse, timeout_ms=60_000, max_version=12).add_done_callback(
                answered
            )
        connection.close()

    def _take(self, response: ProduceResponse) -> None:
        assert response.responses[0].partition_responses[0].error_code == 0
        self.acknowledged += 1
        if self.acknowledged == ENOUGH:
            self.enough.set()


def _wait_for_records(connection: Connection) -> None:
    """A fetch of an empty topic. Answers come in order: what is asked for behind it waits for its end."""
    wanted = FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=1 << 20)
    request = FetchRequest(
        max_wait_ms=MAX_WAIT_MS, min_bytes=1, topics=(FetchTopic(topic="empty", partitions=(wanted,)),)
    )
    answer = connection.send(request, FetchResponse, timeout_ms=2 * MAX_WAIT_MS, max_version=12)
    answer.add_done_callback(lambda each: each.exception())


def _one_record() -> ProduceRequest:
    data = PartitionProduceData(index=0, records=batch_of(b"v" * 100))
    return ProduceRequest(
        acks=-1, timeout_ms=30_000, topic_data=(TopicProduceData(name="orders", partition_data=(data,)),)
    )


async def _stop_under_load(cluster: Cluster) -> int:
    (address,) = parse_addresses(cluster.bootstrap_servers)
    load = PipelinedLoad()
    async with asyncio.TaskGroup() as clients:
        for number in range(CONNECTIONS):
            clients.create_task(load.run(address, behind_a_fetch=number == 0))
        await load.enough.wait()
        await asyncio.to_thread(cluster.stop)
    return load.acknowledged


@pytest.mark.crash
def test_a_stopping_node_answers_each_write_that_it_has_made() -> None:
    with Cluster() as cluster:
        with Admin(cluster.bootstrap_servers) as admin:
            admin.create_topics({"orders": 1, "empty": 1})
        acknowledged = asyncio.run(_stop_under_load(cluster))
        gave_up = "event=requests-left-unanswered" in cluster.log_text()  # the disk was slower than its patience
        cluster.restart()
        with Admin(cluster.bootstrap_servers) as admin:
            (end,) = admin.list_offsets({TopicPartition("orders", 0): LATEST}).values()
        assert acknowledged == end.offset or (gave_up and acknowledged < end.offset)
