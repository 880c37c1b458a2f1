"""The MTL codec (Message Transport Layer, RFC 11): requests and replies of the control flow, commands of the data flow.

`frames` says which of the two a message is. `control` and `data` make values of it, and frames of what is sent. `table`
is the format of a Content's properties, `bodies` reads the JSON of requests, `faults` has what is dropped.
"""
