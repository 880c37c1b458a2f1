"""Transports of Elko sessions besides plain TCP: WebSocket, HTTP long polling, RTCP.

`elko_websocket` frames the messages of one connection. `long_poll` and `rtcp` carry sessions that outlast a connection,
on `virtual_transport`.
"""
