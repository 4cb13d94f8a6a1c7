"""The state of a consumer's reading: positions, fetched records, replicas. Pure."""
