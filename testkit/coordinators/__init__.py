"""Groups, transactions and sinks at their coordinators, with members and writers that act when a test says so."""
