"""A partition and its copies: what is appended, what is safe, what may be read."""
