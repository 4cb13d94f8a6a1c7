"""Transactions (KIP-98, KIP-890): which producer a transactional id belongs to now, and how its transaction stands.

Everything is in the records of `__transaction_state`, so a restart replays it, and goes on writing the markers of each
transaction whose end was decided and is not complete.
"""
