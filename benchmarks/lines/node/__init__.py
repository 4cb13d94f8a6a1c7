"""Lines of a single node."""
