"""The data path below the handlers: which partitions this node has, and how a fetch divides its bytes among them."""
