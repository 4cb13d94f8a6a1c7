"""The audit log of a node: lines in a chain of hashes, in files of their own (decision 0115)."""
