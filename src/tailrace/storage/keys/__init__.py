"""Key indexes (KIP-X): which batches of a log have records of which key hashes, and where the last ones are."""
