"""Values that everyone shares: identities, partitions, key hashes, error codes, settings and the two machine shapes.

This package imports the standard library only and does no IO.
"""

__version__ = "0.1.0"
"""The version of this release, as in pyproject.toml."""
