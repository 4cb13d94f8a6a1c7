"""Access control lists: the rules, the filters that find rules, and the decision that a set of rules makes."""
