"""Transactions over several brokers: their coordinators, clients and sinks."""
