"""ZMTP 1.0 to 3.1 (RFC 13, RFC 23, RFC 37): a codec without I/O, for both sides of a connection.

Invariants: bytes go in and come out, and no module opens a socket or reads a clock. Every bound of `frames` applies
while bytes arrive, so that an endless frame or message is refused before it is held. An error is a `ZmtpError`, after
which a connection decodes nothing more.

Read on in `machine` (one connection, from greeting to traffic, and the handshake NULL), `curve` (its handshake),
`frames` and `curve_frames` (traffic), `helpers` (what of it is compiled), and `version_1`. The ROUTER over Twisted
transports is `broker.net.router`.
"""
