"""DNS sessions: datagrams and connections, and the rate limit of responses."""
