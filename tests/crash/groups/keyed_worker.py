"""A member of a group of keyed consumers, which writes down the begin and the end of its handlers and its commits.

It is killed at any moment: each line is one write to a file that is open for appending. A handler takes some ms, and
fails now and then, with an exception or with the wish for another try.
"""

import asyncio
import json
import os
import sys
import time
from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any
from unittest.mock import patch

from tailrace.aio import KeyedConsumer
from tailrace.client.group.range_progress import NO_NOTES, RangeBudget, RangeProgress
from tailrace.client.keyed.outcomes import KeyedRecord, Outcome, Retry
from tailrace.model.committed_progress import Rectangle
from tailrace.model.partitions import TopicPartition

HANDLER_S = 0.003
CONCURRENCY = 32
SESSION_MS = 6_000
CLASSIC_SESSION: dict[str, Any] = {"session_timeout_ms": SESSION_MS, "heartbeat_interval_ms": 500}
"""With KIP-848 both times are the broker's."""


class Diary:
    """The file of one worker."""

    def __init__(self, path: Path) -> None:
        self._descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def write(self, **line: Any) -> None:
        os.write(self._descriptor, json.dumps({"at": time.monotonic_ns(), **line}).encode() + b"\n")


def noting_commits(diary: Diary) -> AbstractContextManager[object]:
    """Inside, all consumers of this process write down the ranges that are acknowledged, and when they were sent."""
    commit = RangeProgress.commit

    async def noted(
        progress: RangeProgress,
        ranges: Mapping[TopicPartition, Iterable[Rectangle]],
        *,
        notes: Mapping[TopicPartition, str] = NO_NOTES,
    ) -> dict[TopicPartition, RangeBudget]:
        taken = {name: tuple(rectangles) for name, rectangles in ranges.items()}
        sent_ns = time.monotonic_ns()
        budgets = await commit(progress, taken, notes=notes)
        for name in budgets:
            diary.write(commit=name, sent=sent_ns, rectangles=taken[name])
        return budgets

    return patch.object(RangeProgress, "commit", noted)


async def work(servers: str, protocol: Any, group: str, topic: str, diary: Diary) -> None:
    async def handle(record: KeyedRecord) -> Outcome | None:
        key = None if record.key is None else record.key.decode()
        diary.write(place=(record.topic, record.partition), offset=record.offset, key=key)
        await asyncio.sleep(HANDLER_S)
        if record.attempt == 1 and record.offset % 97 == 0:
            return Retry(0.05)
        if record.attempt == 1 and record.offset % 331 == 0:
            raise RuntimeError("it fails once")
        diary.write(done=(record.topic, record.partition), offset=record.offset)
        return None

    consumer = KeyedConsumer(
        servers,
        group=group,
        group_protocol=protocol,
        topics=[topic],
        auto_commit_interval_ms=300,
        grace_ms=2_000,
        metadata_max_age_ms=2_000,
        **(CLASSIC_SESSION if protocol == "classic" else {}),
    )
    await consumer.run(handle, concurrency=CONCURRENCY)


def main() -> None:
    servers, protocol, group, topic, path = sys.argv[1:]
    diary = Diary(Path(path))
    with noting_commits(diary):
        asyncio.run(work(servers, protocol, group, topic, diary))


if __name__ == "__main__":
    main()
