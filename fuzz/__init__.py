"""Hostile bytes, made by machine: coverage-guided for everything that decodes, and thrown at a running node.

`python -m fuzz` runs both parts (`make fuzz`); docs/limits.md says what each part promises.
"""
