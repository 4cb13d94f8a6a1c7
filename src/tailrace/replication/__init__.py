"""A partition and its copies: appends, in-sync replicas, the high watermark, reads."""
