"""Work on records key by key: a handler, lanes, and commits of done records (KIP-X)."""
