"""HTTP over the scheduler: connections, and listeners of `broker.rest` values.

- `request`: the parser of one request, its bounds and its answer. `channel`: one connection, for every protocol over
  HTTP.
- `http_listener`: the listener that makes a `broker.rest.messages.Request` of each request, and sends the answer.
- `responses`: the answers of that listener: whole, in pieces, late, or streams of events.
- `websocket`: outlets of streams, and the other end of a connection that became a WebSocket.

`broker.rest.sites` has the checks against requests that a web page of another site causes.
"""
