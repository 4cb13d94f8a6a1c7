"""Searches beside the poll of a consumer: partitions, first positions, ends of reading, comparisons with the log."""
