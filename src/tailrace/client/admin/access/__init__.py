"""Access to a cluster: its rules, and the limits of its clients."""
