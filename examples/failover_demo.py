"""A leader is killed under load, and no acknowledged record is lost: the first part of `make demo`, without Spark.

Three nodes start on this machine, and a writer sends 15,000 numbered records a second to a topic of one partition with
three replicas. After some seconds SIGKILL ends the node that leads the partition; the writer goes on as before. Then
the demo starts the killed node again, reads the topic from its start, and compares: at each acknowledged offset stands
the record that was sent, and no record stands there twice. Otherwise the demo ends with exit code 1.

The acknowledged records of each half second are drawn while they come, and all figures go to demo-output/failover.json,
from which the second part draws its chart (demo_chart.py).
"""

import json
import sys
import threading
import time
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable
from concurrent.futures import Future
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console

from tailrace import KafkaError, Producer
from tailrace.testing import Cluster, ClusterError

OUTPUT = Path("demo-output")
FIGURES = OUTPUT / "failover.json"
TOPIC = "payments"
BROKERS = 3
SETTINGS = {"min.insync.replicas": "2"}
RECORDS_PER_S = 15_000
BEFORE_S = 3.0
"""The time from the first record to the kill."""
AFTER_S = 3.0
"""The time from the first acknowledged record after the kill to the last record."""
LONGEST_OUTAGE_S = 60.0
"""The demo fails if no record is acknowledged for so long after the kill."""
LONGEST_CATCH_UP_S = 60.0
LONGEST_READ_S = 120.0
ROW_S = 0.5
"""The time of a row on the terminal."""
COLUMN_S = 0.25
"""The time of a column of the chart."""
WIDTH = 40
PAUSE_S = 0.005
MOST_OPEN = 20_000
"""Records without an answer yet. A slow machine gets fewer records, not a longer queue."""
BATCH_BYTES = 128 << 10

console = Console(highlight=False)


def value_of(number: int) -> bytes:
    """The value of the record with this number."""
    return b'{"payment": %d}' % number


@dataclass
class Acknowledgement:
    """The answer to one record: its number, its offset, and the time."""

    number: int
    offset: int
    at: float


class Load:
    """A thread that sends numbered records at a steady rate, and notes the acknowledgement of each record.

    A record of which the producer cannot say that it was written is `refused`; the topic may have this record.
    """

    def __init__(self, producer: Producer, records_per_s: int) -> None:
        self._producer = producer
        self._records_per_s = records_per_s
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.sent_at: list[float] = []
        self.acknowledged: list[Acknowledgement] = []
        self.refused: list[str] = []
        self.fault: BaseException | None = None

    def start(self) -> None:
        """Send the first record, and go on until `stop`."""
        self._thread.start()

    def stop(self) -> None:
        """Send no further record, and return when each record is acknowledged or refused."""
        self._stopping.set()
        self._thread.join()
        self._producer.flush()

    def _run(self) -> None:
        due, due_at = 1.0, time.perf_counter()
        try:
            while not self._stopping.is_set():
                answered = len(self.acknowledged) + len(self.refused)
                due = min(due, float(answered + MOST_OPEN))
                for number in range(len(self.sent_at), int(due)):
                    self._send(number)
                self._stopping.wait(PAUSE_S)
                passed, due_at = time.perf_counter() - due_at, time.perf_counter()
                due += passed * self._records_per_s
        except KafkaError as fault:
            self.fault = fault

    def _send(self, number: int) -> None:
        self.sent_at.append(time.perf_counter())
        sent = self._producer.send(TOPIC, value_of(number), partition=0)
        sent.add_done_callback(partial(self._note, number))

    def _note(self, number: int, sent: "Future[Any]") -> None:
        try:
            offset = sent.result().offset
        except KafkaError as fault:
            self.refused.append(str(fault))
        else:
            self.acknowledged.append(Acknowledgement(number, offset, time.perf_counter()))

    def first_acknowledged_after(self, moment: float) -> float | None:
        """The time at which the first record that was sent after this moment was acknowledged; None if none is yet.

        The acknowledgements of one partition come in the order of its records.
        """
        first = bisect_left(self.sent_at, moment)
        place = bisect_left(self.acknowledged, first, key=lambda answer: answer.number)
        return self.acknowledged[place].at if place < len(self.acknowledged) else None


@dataclass
class Verdict:
    """The comparison of the acknowledged records with the records that the topic has."""

    acknowledged: int
    read: int
    lost: int
    """Acknowledged records that are not at their offsets."""
    twice: int
    """Records that the topic has more than once."""
    example: str = ""

    @property
    def is_good(self) -> bool:
        return self.acknowledged > 0 and self.lost == 0 and self.twice == 0


def compared(acknowledged: Iterable[Acknowledgement], read: dict[int, bytes]) -> Verdict:
    """Compare the acknowledged records with the values that were read, by offset."""
    answers = list(acknowledged)
    lost = [answer for answer in answers if read.get(answer.offset) != value_of(answer.number)]
    repeated = [value for value, times in Counter(read.values()).items() if times > 1]
    example = ""
    if lost:
        example = f"offset {lost[0].offset} was acknowledged for {value_of(lost[0].number)!r}, and has "
        example += repr(read[lost[0].offset]) if lost[0].offset in read else "no record"
    elif repeated:
        example = f"{repeated[0]!r} is there more than once"
    return Verdict(len(answers), len(read), len(lost), len(repeated), example)


class Meter:
    """Rows on the terminal: the acknowledged records of each half second since the start."""

    def __init__(self, load: Load) -> None:
        self._load = load
        self._began = time.perf_counter()
        self._shown_until = self._began
        self._counted = 0

    def run_until(self, moment: float) -> None:
        """Draw a row whenever its time is over, until this moment."""
        while (left := moment - time.perf_counter()) > 0:
            time.sleep(min(left, max(self._shown_until + ROW_S - time.perf_counter(), 0.0)))
            self.draw()

    def draw(self) -> None:
        """Draw each row whose time is over."""
        while time.perf_counter() >= self._shown_until + ROW_S:
            self._shown_until += ROW_S
            count = bisect_left(self._load.acknowledged, self._shown_until, key=lambda answer: answer.at)
            new, self._counted = count - self._counted, count
            bar = "█" * min(round(new / (RECORDS_PER_S * ROW_S) * WIDTH), 2 * WIDTH)
            console.print(f"  {self._shown_until - self._began:4.1f} s {new:7,}  [green]{bar}[/green]", soft_wrap=True)


def read_all(cluster: Cluster) -> dict[int, bytes]:
    """The values of the topic by their offsets."""
    records = cluster.read_all(TOPIC, isolation="read_uncommitted", timeout=LONGEST_READ_S)
    return {record.offset: record.value or b"" for record in records}


def kill_leader(cluster: Cluster, load: Load, meter: Meter) -> tuple[int, float, float]:
    """Kill the node that leads. Returns its number, the time of the kill, and the time at which writes were back."""
    leader = cluster.wait_until_leader(TOPIC)
    process = cluster.process_id(leader)
    meter.draw()
    killed_at = time.perf_counter()
    cluster.kill(leader)
    dead_at = time.perf_counter()
    console.print(f"  [bold red]kill -9 {process}[/bold red]: node {leader}, the leader of {TOPIC}-0", soft_wrap=True)
    while (back_at := load.first_acknowledged_after(dead_at)) is None:
        if load.fault is not None or time.perf_counter() > killed_at + LONGEST_OUTAGE_S:
            sys.exit(f"no record was acknowledged after the kill: {load.fault or f'in {LONGEST_OUTAGE_S:.0f} s'}")
        time.sleep(PAUSE_S)
        meter.draw()
    return leader, killed_at, back_at


@dataclass
class Figures:
    """The figures of a run, for the chart; times are seconds since the first record."""

    verdict: Verdict
    refused: int
    killed_at: float
    outage_s: float
    """The time from the kill to the first acknowledgement of a record that was sent after the kill: records that were
    sent before come first."""
    column_s: float
    columns: list[int]
    """Acknowledged records of each `column_s`."""


def columns_of(acknowledged: list[Acknowledgement], began: float) -> list[int]:
    """The acknowledged records of each column of the chart."""
    counts = Counter(int((answer.at - began) / COLUMN_S) for answer in acknowledged)
    return [counts[column] for column in range(max(counts, default=-1) + 1)]


def run(cluster: Cluster, before_s: float = BEFORE_S, after_s: float = AFTER_S) -> Figures:
    """Write, kill the leader, and write on; start the killed node again, read all records and compare them."""
    cluster.create_topic(TOPIC, replication_factor=BROKERS)
    cluster.wait_until_in_sync(TOPIC, timeout=LONGEST_CATCH_UP_S)
    console.print(f"[bold]Writing {RECORDS_PER_S:,} records a second[/bold]; acknowledged in each half second:")
    with Producer(cluster.bootstrap_servers, linger_ms=5, batch_size=BATCH_BYTES) as producer:
        load = Load(producer, RECORDS_PER_S)
        load.start()
        meter = Meter(load)
        meter.run_until(time.perf_counter() + before_s)
        killed, killed_at, back_at = kill_leader(cluster, load, meter)
        meter.run_until(time.perf_counter() + after_s)
        load.stop()
    console.print(f"[bold]Starting node {killed} again, and reading all records[/bold] ...")
    cluster.start(killed)
    cluster.wait_until_in_sync(TOPIC, timeout=LONGEST_CATCH_UP_S)
    verdict = compared(load.acknowledged, read_all(cluster))
    began = load.sent_at[0]
    columns = columns_of(load.acknowledged, began)
    return Figures(verdict, len(load.refused), killed_at - began, back_at - killed_at, COLUMN_S, columns)


def sentence(figures: Figures) -> str:
    """The result in a line."""
    verdict = figures.verdict
    counts = f"{verdict.acknowledged:,} acknowledged, {verdict.read:,} read, {verdict.lost:,} lost"
    if verdict.twice:
        counts += f", {verdict.twice:,} twice"
    if figures.refused:
        counts += f"; {figures.refused:,} were not acknowledged, and the writer knows"
    return f"{counts}; writes back {figures.outage_s:.1f} s after the kill"


def report(figures: Figures) -> None:
    """Print the result and write the figures; exit 1 with a line if a record was lost or is there twice."""
    console.print(f"[bold]{sentence(figures)}[/bold]", soft_wrap=True)
    if not figures.verdict.is_good:
        sys.exit(f"demo failed: {figures.verdict.example or 'no record was acknowledged'}")
    FIGURES.write_text(json.dumps(asdict(figures)))


def main() -> None:
    """Run the demo."""
    OUTPUT.mkdir(exist_ok=True)
    FIGURES.unlink(missing_ok=True)
    console.print(f"[bold]Starting {BROKERS} nodes[/bold] ...")
    with Cluster(brokers=BROKERS, config=SETTINGS) as cluster:
        console.print(f"  listening on {cluster.bootstrap_servers}", soft_wrap=True)
        report(run(cluster))


if __name__ == "__main__":
    try:
        main()
    except (KafkaError, ClusterError, TimeoutError) as fault:
        sys.exit(f"demo failed: {fault}")
