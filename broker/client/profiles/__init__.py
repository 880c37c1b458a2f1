"""Functions for each profile, which take a `broker.client.mtl.Client`.

`queue` has work queues, `topic` publish and subscribe, `registry` views of services and offers, `service` requests and
replies, `test` RFC 11's test profile.
"""
