"""Transports of Elko sessions besides plain TCP: WebSocket, HTTP long polling, RTCP."""
