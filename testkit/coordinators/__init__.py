"""Groups, transactions and sinks at their coordinators, with members and writers on a table."""
