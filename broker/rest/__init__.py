"""HTTP as values: requests, responses, problems, and the descriptions of endpoints. No sockets."""
