"""The parts of a frame that the Spark tests read."""

from pyspark.sql import DataFrame


def positions(frame: DataFrame) -> list[tuple[int, int, str]]:
    """(partition, offset, value), sorted."""
    rows = frame.selectExpr("partition", "offset", "CAST(value AS STRING)").collect()
    return sorted((row[0], row[1], row[2]) for row in rows)
