"""Client library for programs that use the broker over MTL; independent of the daemon's modules.

`blocking` is for programs without an event loop, `asyncio_client` for asyncio, `mtl` for Twisted. `profiles` has the
functions for queues, topics, services and the registry, and `testing` an in-memory broker for tests. docs/clients.md is
the guide.
"""
