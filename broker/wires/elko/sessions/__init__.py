"""Elko sessions: one state machine for each connection, independent of sockets."""
