"""`make bench`: speed as a ratio to a peer, measured in one run on one machine, rounds alternating."""
