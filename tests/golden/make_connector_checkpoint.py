"""Writes tests/golden/connector_checkpoint: the checkpoint of a query with Spark's own Kafka connector, of two batches.

    python tests/golden/make_connector_checkpoint.py

The query has read 10 and then 6 records of the two partitions of `orders`. The connector's jars come from Maven.
"""

import shutil
import tempfile
from pathlib import Path

from benchmarks.downloads.kafka_jars import CONNECTOR_JARS, connector_absent
from tailrace.client.blocking import Admin, Producer
from tailrace.spark.session import local_session
from tailrace.testing import Cluster

TARGET = Path(__file__).parent / "connector_checkpoint"


def main() -> None:
    if why := connector_absent():
        raise SystemExit(why)
    jars = ",".join(map(str, sorted(CONNECTOR_JARS.glob("*.jar"))))
    spark = local_session("connector", cores=2, brief=True, **{"spark.jars": jars})
    with Cluster() as cluster, tempfile.TemporaryDirectory() as work:
        servers = cluster.bootstrap_servers
        with Admin(servers) as admin:
            admin.create_topics({"orders": 2})
        for count in (10, 6):
            with Producer(servers) as producer:
                for number in range(count):
                    producer.send("orders", b"%d" % number, partition=number % 2)
            query = (
                spark.readStream.format("kafka")
                .option("kafka.bootstrap.servers", servers)
                .option("subscribe", "orders")
                .option("startingOffsets", "earliest")
                .load()
                .writeStream.format("noop")
                .option("checkpointLocation", f"{work}/checkpoint")
                .trigger(availableNow=True)
                .start()
            )
            query.awaitTermination()
        shutil.rmtree(TARGET, ignore_errors=True)
        shutil.copytree(f"{work}/checkpoint", TARGET)
    spark.stop()


if __name__ == "__main__":
    main()
