"""A Spark program that reads the numbers in a topic, committed ones only, and prints a JSON object about them.

python -m crash.spark.reader SERVERS TOPIC
"""

import json
import sys

from tailrace.spark.session import local_session


def main(servers: str, topic: str) -> None:
    spark = local_session("reader", brief=True)
    reader = spark.read.format("tailrace").option("kafka.bootstrap.servers", servers).option("subscribe", topic)
    frame = reader.option("kafka.isolation.level", "read_committed").schema("value binary").load()
    numbers = frame.selectExpr("CAST(CAST(value AS STRING) AS BIGINT) AS number")
    found = numbers.selectExpr("count(*)", "count(DISTINCT number)", "min(number)", "max(number)").first()
    assert found is not None
    sys.stdout.write(json.dumps(dict(zip(("rows", "numbers", "least", "greatest"), found, strict=True))))
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
