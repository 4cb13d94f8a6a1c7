"""A node under mixed load, whose power is cut and whose process is killed."""
