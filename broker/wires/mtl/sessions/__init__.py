"""MTL sessions: the control flow, the data flows, and the interface of the profiles."""
