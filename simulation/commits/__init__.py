"""Commits of ranges of one partition, in every order."""
