"""The page at ``/``: a client of the HTTP API in plain HTML, CSS and JavaScript."""
