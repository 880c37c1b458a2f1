"""HTTP over the scheduler: connections on Twisted's HTTP implementation, and listeners of `broker.rest` values.

- `channel` and `request`: one connection and its requests, for every protocol over HTTP.
- `listener`: the listener that makes a `broker.rest.messages.Request` of each request, and sends the answer.
- `answering`: one answer of that listener: whole, in pieces, or a stream of events.
- `websocket`: the other end of a connection that became a WebSocket.

`broker.rest.sites` has the checks against requests that a web page of another site causes.
"""
