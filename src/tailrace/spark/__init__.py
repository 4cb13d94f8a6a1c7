"""The Spark source and sink: `spark.read.format("tailrace")`, with the options and rows of Spark's Kafka connector.

`options`, `offsets` and `planning` plan the reads, without PySpark; only `source`, `readers`, `sink` and `session`
import it.
"""
