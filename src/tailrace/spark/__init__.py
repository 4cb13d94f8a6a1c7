"""The Spark source and sink: `spark.read.format("tailrace")`, with the options and rows of Spark's Kafka connector.

`source_options`, `sink_options`, `offsets` and `planning` plan, without PySpark. The modules that Spark calls, or that
run in its workers, import PySpark; pyproject.toml names these modules.
"""
