"""What operators use: the console."""
