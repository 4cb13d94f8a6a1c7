"""Parts that all worlds share. This code knows nothing about the hosts of a world."""
