"""Administration of a cluster: one module per subject, and a client with their functions as methods."""
