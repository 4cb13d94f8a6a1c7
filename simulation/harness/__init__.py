"""Parts that all worlds share. Nothing here knows what a host is."""
