"""Lines of fetch sessions and idle partitions (KIP-227)."""
