"""Files of a stopped node, read without its cluster: logs, their indexes, records, the quorum state."""
