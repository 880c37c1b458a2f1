"""MTL: the control flow, the data flows, and the profiles that give them a meaning."""
