"""Histories of runs with faults, verdicts on these histories, and anomalies planted into them."""
