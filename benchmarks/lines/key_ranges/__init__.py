"""Lines of key ranges (KIP-X)."""
