"""The Elko codec: pure functions between bytes and messages. It imports no Twisted."""
