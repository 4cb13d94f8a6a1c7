"""A node without sockets, threads and a real clock: its ports, its paths from frame to file, and its faults."""
