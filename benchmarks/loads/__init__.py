"""The load of a client on a server: frames at the least cost, or a whole client in a process of its own."""
