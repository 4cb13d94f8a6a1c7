"""Reads of the Spark source: its options, the plan of offsets on the driver, the readers on the executors."""
