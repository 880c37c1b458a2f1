"""What each profile is used for, in a few words: functions that take a `broker.client.mtl.Client`.

`queue` gives work and takes it, `topic` publishes and subscribes, `registry` watches services and offers them,
`service` calls and serves them, `test` is RFC 11's own.
"""
