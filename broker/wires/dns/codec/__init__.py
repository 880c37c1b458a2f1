"""The DNS codec: bytes to queries, responses to bytes, and messages on a stream."""
