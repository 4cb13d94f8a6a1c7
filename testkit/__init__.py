"""Servers, clients and data for our own tests, without sockets. No wheel has this package: users have
`tailrace.testing`.

`nodes` has the node and its ports, `quorum` the controller, `coordinators` groups, transactions and sinks, `clients`
the scripted nodes of a client, `records` batches and frames, `programs` the programs around a node. `verdicts` judges
the histories of runs with faults.
"""
