"""Pure codecs, one package for each format: bytes to frozen messages and back. No Twisted, no sockets."""
