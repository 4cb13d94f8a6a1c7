"""Transactions (KIP-98, KIP-890): the present producer of each transactional id, and the state of its transaction.

All state is in the records of `__transaction_state`: a restart replays the records, and writes the markers of each
transaction whose end is decided and not complete.
"""
