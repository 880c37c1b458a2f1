"""mc0 sessions: one state machine for each identity."""
