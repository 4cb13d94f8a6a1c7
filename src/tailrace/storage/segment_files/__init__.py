"""Files of a segment: its batches, its indexes, its limits, and the swap of several segments for a new segment."""
