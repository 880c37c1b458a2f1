"""The live display: its state, its keys, and its screen."""
