"""A fetch that waits for as many bytes as it asks for."""

from collections.abc import Callable, Sequence

from tailrace.protocol.messages.fetch import FetchResponse
from tailrace.replication.outcomes import READ_COMMITTED
from tailrace.replication.partition import Partition
from tailrace.server.fetch.reading import Reading


class WaitingFetch:
    """A `server.waiters.LongPoll`. Of what was read it keeps only how much there was: it is read again."""

    __slots__ = (
        "_answer",
        "_asked",
        "_available_bytes",
        "_readable_bytes",
        "_stable_ends",
        "is_of_replica",
        "partitions",
    )

    def __init__(self, first: Reading, answer: Callable[[Reading], FetchResponse]) -> None:
        """`first` was not enough. `answer` makes the response of a reading that is."""
        self._asked = first.asked
        self._answer = answer
        self.is_of_replica = first.asked.reader.is_replica
        self._note(first)

    def _note(self, reading: Reading) -> None:
        self.partitions = [partition for partition, _ in reading.given]
        self._available_bytes = reading.available_bytes
        """The bytes that were there at the last look, as far as the limits allow them, and those readable since."""
        counted = () if self.is_of_replica else self.partitions
        self._readable_bytes = {partition: partition.readable_bytes for partition in counted}
        self._stable_ends: dict[Partition, int] = {}
        """The ends at which open transactions held back a reader of committed data at the last look."""
        if self._asked.isolation == READ_COMMITTED:
            for partition in counted:
                if partition.last_stable_offset < partition.high_watermark:
                    self._stable_ends[partition] = partition.last_stable_offset

    def retry(self, moved: Sequence[Partition], *, is_last: bool) -> bool:
        """Answer if enough has become readable since the last look, the answer is urgent, or the time is over."""
        if not (is_last or self._may_have_enough(moved)):
            return False
        reading = Reading(self._asked, is_last=is_last)
        if reading.ends_wait or is_last:
            self._asked.context.respond(self._answer(reading))
            return True
        self._note(reading)
        return False

    def _may_have_enough(self, moved: Sequence[Partition]) -> bool:
        """Whether reading again can give enough. Counts what became readable, without looking at the disk."""
        for partition in moved:
            if self.is_of_replica or not partition.is_leader:
                return True
            if partition in self._stable_ends:
                if partition.last_stable_offset != self._stable_ends[partition]:
                    return True  # how much lies between is not counted
                continue
            readable_bytes = partition.readable_bytes
            gained = readable_bytes - self._readable_bytes.get(partition, readable_bytes)
            if not gained:
                return True  # it moved within one write, or over what was there before the start: not counted
            self._available_bytes += gained
            self._readable_bytes[partition] = readable_bytes
        return self._available_bytes >= self._asked.wanted_bytes
