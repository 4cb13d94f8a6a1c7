"""Key indexes (KIP-X): which batches of a log have records of which key hashes, and the last offset of each part of the
hashes."""
