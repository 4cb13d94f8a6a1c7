"""One log on one simulated disk."""
