"""Lines of a Spark query beside its own connector."""
