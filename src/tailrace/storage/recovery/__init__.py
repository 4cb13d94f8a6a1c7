"""Recovery of a log from its files: after a clean stop from a note, otherwise from the batches."""
