"""The times of stored batches: whose headers were compared with their records, and the walk over all others."""
