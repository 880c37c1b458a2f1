"""Users and their rights, for all listeners."""
