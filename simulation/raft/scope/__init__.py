"""Every order of a few events of three Raft machines."""
