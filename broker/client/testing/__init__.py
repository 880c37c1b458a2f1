"""In-memory broker for the tests of programs that use the client: no daemon, no sockets, no ports.

    broker = FakeBroker()
    with broker.blocking_client() as client:
        client.write("queue", ["jobs"]).send(b"resize")
        work_on(client)
    assert broker.queued("jobs") == []

`FakeBroker` replaces the transport below the real client, so a test uses the same classes as the program itself. The
fake has the profiles queue, topic, service, registry and test, sessions, leases, windows and restarts. One suite of
behaviour tests runs over the fake and over the real daemon. docs/clients.md says which differences remain.
"""

from broker.client.testing.fake_broker import FakeBroker

__all__ = ["FakeBroker"]
