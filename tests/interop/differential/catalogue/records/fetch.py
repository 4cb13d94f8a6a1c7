"""Fetch: what is read from where, how much of it, and what is refused."""

from interop.differential.catalogue.preparation import batch, created, filled, records
from interop.differential.script import Answers, Build, Script, ask, every_version, key_versions
from tailrace.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic, ForgottenTopic, ReplicaState
from tailrace.protocol.records.record import build_batch

TOPIC = "fetch"
_ALL = 1 << 20


def fetches() -> Script:
    yield from created(TOPIC, 3)
    yield from filled(
        TOPIC, batch(5), batch(3, codec=1), batch(1), batch(4, codec=4), batch(2, codec=2), batch(2, codec=3)
    )
    yield from filled(TOPIC, *(bytes(build_batch(records(1, bytes_each=500))) for _ in range(6)), partition=1)
    yield from _positions()
    yield from _sizes()
    yield from _refusals()
    yield from _sessions()
    yield from _logs_of_others()


def fetch(
    *wanted: tuple[int, int],
    topic: str = TOPIC,
    max_bytes: int = _ALL,
    partition_max_bytes: int = _ALL,
    min_bytes: int = 0,
    isolation: int = 0,
    epoch: int = -1,
    last_fetched_epoch: int = -1,
    replica: int = -1,
    session: tuple[int, int] = (0, -1),
    forgotten: tuple[ForgottenTopic, ...] = (),
) -> Build:
    """A Fetch that does not wait, of partitions and offsets, by name and, where the version has no name, by id."""
    partitions = tuple(
        FetchPartition(
            partition=index,
            current_leader_epoch=epoch,
            fetch_offset=offset,
            last_fetched_epoch=last_fetched_epoch,
            partition_max_bytes=partition_max_bytes,
        )
        for index, offset in wanted
    )

    def build(answers: Answers) -> FetchRequest:
        topic_id = answers.topic_ids.get(topic, b"no such topic id")
        return FetchRequest(
            replica_id=replica,
            replica_state=ReplicaState(replica_id=replica, replica_epoch=-1),
            max_wait_ms=0,
            min_bytes=min_bytes,
            max_bytes=max_bytes,
            isolation_level=isolation,
            session_id=session[0],
            session_epoch=session[1],
            topics=(FetchTopic(topic=topic, topic_id=topic_id, partitions=partitions),) if wanted else (),
            forgotten_topics_data=forgotten,
        )

    return build


def _positions() -> Script:
    versions = key_versions(FetchRequest)
    yield from ask("the whole log", fetch((0, 0)), *every_version(FetchRequest))
    yield from ask("the whole log, read committed", fetch((0, 0), isolation=1), *versions)
    for offset in (1, 4, 5, 6, 8, 12, 16, 17):
        yield from ask(f"from offset {offset}", fetch((0, offset)), *versions)
    for offset in (18, 100, -1, -2, 2**62):
        yield from ask(f"from offset {offset}", fetch((0, offset)), *versions)
        yield from ask(f"from offset {offset}, read committed", fetch((0, offset), isolation=1), 4, 18)
    yield from ask("an empty partition", fetch((2, 0)), *versions)
    yield from ask("an empty partition from offset 1", fetch((2, 1)), *versions)
    yield from ask("three partitions", fetch((0, 0), (1, 0), (2, 0)), *every_version(FetchRequest))
    yield from ask("nothing", fetch(), *versions)


def _sizes() -> Script:
    for limit in (0, 1, 100, 400, 600, 1_200, 1_300, -1):
        yield from ask(f"at most {limit} bytes", fetch((0, 0), (1, 0), max_bytes=limit), 4, 11, 18)
        limited = fetch((0, 0), (1, 0), partition_max_bytes=limit)
        yield from ask(f"at most {limit} bytes of each partition", limited, 4, 11, 18)
        middle = fetch((1, 2), partition_max_bytes=limit)
        yield from ask(f"at most {limit} bytes from the middle", middle, 4, 18)
    yield from ask("no room, read committed", fetch((0, 15), (1, 0), max_bytes=300, isolation=1), 4, 11, 18)
    yield from ask("room behind a batch that does not fit", fetch((1, 0), (0, 0), max_bytes=1_000), 4, 11, 18)
    for least in (-1, 1, 1 << 30):
        yield from ask(f"at least {least} bytes", fetch((1, 0), min_bytes=least), 4, 18)
        yield from ask(f"at least {least} bytes at the end", fetch((1, 6), min_bytes=least), 4, 18)


def _refusals() -> Script:
    versions = key_versions(FetchRequest)
    yield from ask("an unknown partition", fetch((9, 0)), *versions)
    yield from ask("an unknown partition beside a known one", fetch((9, 0), (0, 16)), *versions)
    yield from ask("partition -1", fetch((-1, 0)), *versions)
    yield from ask("an unknown topic", fetch((0, 0), topic="nowhere"), *versions)
    yield from ask("a topic with an invalid name", fetch((0, 0), topic="no/such"), 4, 12)
    yield from ask("an isolation level that is none", fetch((0, 16), isolation=2), 4, 18)
    for epoch in (0, 1, 9):
        yield from ask(f"in leader epoch {epoch}", fetch((0, 16), epoch=epoch), 9, 12, 18)
        yield from ask(f"after epoch {epoch}", fetch((0, 16), last_fetched_epoch=epoch), 12, 18)
    yield from ask("out of range in another epoch", fetch((0, 99), epoch=3), 9, 18)
    yield from ask("a partition named twice", fetch((1, 0), (1, 5)), *versions)


def _sessions() -> Script:
    yield from ask("a session is asked for", fetch((0, 16), session=(0, 0)), 7, 12, 18)
    yield from ask("a session that is not there", fetch((0, 16), session=(4711, 1)), 7, 12, 18)
    yield from ask("a session that is not there is closed", fetch(session=(4711, -1)), 7, 12, 18)
    yield from ask("a session without an id", fetch((0, 16), session=(0, 5)), 7, 18)
    yield from ask("a new session in the place of another", fetch((0, 16), session=(4711, 0)), 7, 18)
    forgotten = (ForgottenTopic(topic=TOPIC, partitions=(0,)),)
    yield from ask("partitions forgotten without a session", fetch((1, 5), forgotten=forgotten), 7, 12)


def _logs_of_others() -> Script:
    """Records of the other parts of the script come back as they were sent."""
    for topic in ("produce", "compacted", "append-time", "small-messages"):
        for partition in (0, 1) if topic == "produce" else (0,):
            yield from ask(f"all of {topic}-{partition}", fetch((partition, 0), topic=topic), 4, 12, 18)
