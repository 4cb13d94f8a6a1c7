"""Writers of a sink on a `TransactionPath`: tasks that write members, and drivers that commit these members."""

from tailrace.model.errors import ErrorCode
from tailrace.model.sinks import SinkMember, sink_key
from tailrace.protocol.messages.sinks import (
    CommitSinkRequest,
    CommitSinkResponse,
    DescribedSink,
    DescribeSinksRequest,
    MemberToCommit,
)
from testkit.coordinators.transaction_path import TransactionalClient, TransactionPath
from testkit.nodes.data_path import Exchange


class SinkWriter:
    """A run of a writer of a sink. `version` is the transaction.version that its tasks go by."""

    def __init__(self, node: TransactionPath, run: str, *, sink: str = "copy", version: int = 2) -> None:
        self.node = node
        self.run = run
        self.sink = sink
        self._version = version

    def member(self, batch: int, task: int = 0, attempt: int = 0) -> TransactionalClient:
        """An attempt that has not been initialized."""
        name = SinkMember(self.sink, self.run, batch, task, attempt).transactional_id
        return TransactionalClient(self.node, name, version=self._version)

    def write(
        self, batch: int, *values: bytes, task: int = 0, attempt: int = 0, topic: str = "orders"
    ) -> MemberToCommit:
        """An attempt that has written these values."""
        client = self.member(batch, task, attempt)
        assert client.initialize() is ErrorCode.NONE
        self.write_as(client, *values, topic=topic)
        return identity(client)

    def write_as(self, client: TransactionalClient, *values: bytes, topic: str = "orders") -> None:
        """Write with an attempt that is initialized."""
        if self._version < 2:
            assert client.add(topic) is ErrorCode.NONE
        assert client.send(topic, *values) is ErrorCode.NONE

    def ask_to_commit(
        self,
        batch: int,
        *members: MemberToCommit,
        origin: str | None = None,
        takes_over: bool = False,
        timeout_ms: int = 30_000,
    ) -> Exchange:
        """Send CommitSink."""
        request = CommitSinkRequest(
            sink_id=self.sink,
            run=self.run,
            batch=batch,
            origin=origin,
            takes_over=takes_over,
            timeout_ms=timeout_ms,
            members=members,
        )
        return self.node.send(request, 0)

    def commit(self, batch: int, *members: MemberToCommit) -> CommitSinkResponse:
        """Send CommitSink, and return its answer."""
        answer = self.ask_to_commit(batch, *members).response
        assert isinstance(answer, CommitSinkResponse)
        return answer

    def describe(self) -> DescribedSink:
        """The description of the sink that tools get."""
        (described,) = self.node.send(DescribeSinksRequest(sink_ids=(self.sink,)), 0).response.sinks
        assert isinstance(described, DescribedSink)
        return described


def find_sink(node: TransactionPath, sink: str = "copy") -> None:
    """Find the coordinator of a sink; it serves afterwards, if flushes are immediate."""
    assert node.find_transaction_coordinator(sink_key(sink)) is ErrorCode.NONE


def identity(client: TransactionalClient) -> MemberToCommit:
    """The member with its producer, in the form in which a task reports it."""
    return MemberToCommit(
        transactional_id=client.transactional_id,
        producer_id=client.producer_id,
        producer_epoch=client.producer_epoch,
    )
