"""A log as its files have it: after a clean stop from a note, otherwise from the batches."""
