"""Health checks of services: rules, the state of each check, and their schedule. Without sockets."""
