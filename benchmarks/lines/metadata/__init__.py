"""Lines of the metadata log and its snapshots (KIP-630), without a network."""
