"""mc0 sessions: one session for each identity, their lifecycle, subscriptions and replies."""
