"""`make bench`: speed as a ratio to a peer, measured in one run on one machine, rounds alternating.

`lines` has a folder for each subject; a line measures `peers` under `loads` and gives a section of `results`.
"""
