"""An application of Spark on a cluster with TLS and SASL: it reads and writes in each way, and fails in some ways.

`python secured_program.py SHOWN SECRETS SERVERS KIND`. The directory SHOWN has `options.json`, the options of a user,
and `wrong.json`, the options with a wrong password. SECRETS has `inline.json`, options with a secret. KIND is `classic`
or `connect`. The last line of the output is JSON.
"""

import json
import logging
import sys
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from tailrace.spark.session import local_session

SHOWN, SECRETS = map(Path, sys.argv[1:3])
SERVERS, KIND = sys.argv[3:]
EVENTS: dict[str, Any] = {
    "spark.eventLog.enabled": "true",
    "spark.eventLog.dir": (SHOWN / "events").as_uri(),
    "spark.eventLog.compress": "false",
}


def session() -> SparkSession:
    """The session, with an event log."""
    if KIND == "classic":
        return local_session("secured", brief=True, **EVENTS)
    from spark.conftest import connect_session

    return connect_session(EVENTS)


def options_in(file: Path) -> dict[str, str]:
    """The options of a user, with the addresses."""
    given: dict[str, str] = json.loads(file.read_text())
    return {"kafka.bootstrap.servers": SERVERS, **given}


def values(spark: SparkSession, topic: str, options: dict[str, str]) -> list[str]:
    """The values of a topic, sorted; the plan is printed."""
    frame = spark.read.format("tailrace").options(**options).option("subscribe", topic).load()
    chosen = frame.selectExpr("CAST(value AS STRING) AS value")
    chosen.explain(extended=True)
    return sorted(row.value for row in chosen.collect())


def refusal(spark: SparkSession, options: dict[str, str]) -> str:
    """The exception of a read with these options."""
    try:
        spark.read.format("tailrace").options(**options).option("subscribe", "written").load().collect()
    except Exception as fault:  # noqa: BLE001 - classic sessions and Connect raise their own classes
        return f"{fault!r} {fault}"
    return "no exception"


def main() -> None:
    logging.basicConfig(level=logging.INFO)
    logging.getLogger("tailrace").setLevel(logging.DEBUG)
    spark, options = session(), options_in(SHOWN / "options.json")
    if KIND == "classic":
        spark.sparkContext.setLogLevel("INFO")
    written = {**options, "topic": "written"}
    rows = spark.createDataFrame([("tea",), ("milk",)], "value string")
    rows.write.format("tailrace").mode("append").options(**written).save()
    once = {**written, "exactlyOnce": "true", "sinkId": "sold"}
    spark.createDataFrame([("sugar",)], "value string").write.format("tailrace").mode("append").options(**once).save()
    query = (
        spark.readStream.format("tailrace")
        .options(**options, subscribe="written", startingOffsets="earliest", **{"kafka.group.id": "watchers"})
        .load()
        .selectExpr("value")
        .writeStream.format("tailrace")
        .options(**options, topic="copied", exactlyOnce="true")
        .option("checkpointLocation", str(SHOWN / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    query.explain(extended=True)
    named = ", ".join(f"`{name}` '{value}'" for name, value in options.items())
    spark.sql(f"CREATE TEMPORARY VIEW of_sql USING tailrace OPTIONS ({named}, subscribe 'written')")
    found: dict[str, Any] = {
        "written": values(spark, "written", options),
        "copied": values(spark, "copied", {**options, "kafka.isolation.level": "read_committed"}),
        "of_sql": spark.sql("SELECT * FROM of_sql").count(),
        "wrong": refusal(spark, options_in(SHOWN / "wrong.json")),
        # Connect records plans before a source sees them, so the search would find what the user has given away.
        "inline": refusal(spark, options_in(SECRETS / "inline.json")) if KIND == "classic" else "",
    }
    spark.stop()
    sys.stdout.write(json.dumps(found) + "\n")


if __name__ == "__main__":
    main()
