"""Rounds, figures and their verdicts, and the ways to show figures."""
