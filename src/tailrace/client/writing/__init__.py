"""Batches of a producer: checks, queues, sending, and the futures of their records."""
