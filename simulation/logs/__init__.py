"""A log on a simulated disk."""
