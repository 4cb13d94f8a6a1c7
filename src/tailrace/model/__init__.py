"""Values that all packages share: identities, partitions, key hashes, error codes, settings, the shapes of machines.

This package imports the standard library only and does no IO.
"""

__version__ = "0.1.0"
"""The version of this release, as in pyproject.toml."""
