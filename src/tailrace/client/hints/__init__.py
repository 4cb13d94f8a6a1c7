"""Texts about wrong names and wrong calls of clients, with the right form."""
