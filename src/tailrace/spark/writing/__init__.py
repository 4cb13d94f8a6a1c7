"""Writes of the Spark sink: its options, rows to batches, and each row once."""
