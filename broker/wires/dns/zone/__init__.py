"""The zone: from a question and the registry to a response, without sockets and without state of clients."""
