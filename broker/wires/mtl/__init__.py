"""MTL (ZeroMQ RFC 11): a control flow in JSON, and binary data flows."""
