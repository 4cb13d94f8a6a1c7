"""The Spark source and sink: `spark.read.format("tailrace")`, with the options and rows of Spark's Kafka connector.

`options`, `offsets` and `splits` plan and know no Spark; `source`, `sink` and `session` are the glue, and the only
modules that import PySpark.
"""
