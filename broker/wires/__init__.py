"""Wires: one folder for each protocol that peers speak, behind one interface."""
