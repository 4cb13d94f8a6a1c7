"""Runs first in a node that is to be of the release before this, as far as the format of the metadata goes.

Python imports a module of this name before all others.
"""

from tailrace.metadata import feature_levels

feature_levels.METADATA_VERSION = feature_levels.OLDEST_METADATA_VERSION
