"""Work on records key by key: a handler, lanes, and commits of what is done (KIP-X)."""
