"""The controller, its commands, and the records and logs of the metadata quorum."""
