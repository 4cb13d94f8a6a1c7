"""Copies of partitions on several brokers, under one controller that never fails."""
