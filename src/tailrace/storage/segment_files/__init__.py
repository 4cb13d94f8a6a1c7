"""One segment: its batches, its indexes, its limits, and the swap of several for one."""
