"""Whole nodes: the hosts of the metadata log on simulated disks; and brokers beside these hosts."""
