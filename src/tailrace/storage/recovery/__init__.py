"""Recovery of a log from its files: from a note after a clean stop, otherwise from the batches."""
