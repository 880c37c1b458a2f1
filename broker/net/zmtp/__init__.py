"""ZMTP 3.0 and 3.1 (RFC 23, RFC 37): a codec without I/O, and a ROUTER over Twisted transports."""
