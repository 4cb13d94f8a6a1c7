"""A sink, its drivers and tasks, in every order."""
