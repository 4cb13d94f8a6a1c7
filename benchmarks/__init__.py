"""`make bench`: speed as a ratio to a peer. Both are measured in one run on one machine, in alternating rounds.

`lines` has a folder for each subject; a line measures `peers` under `loads` and gives a section of `results`.
"""
