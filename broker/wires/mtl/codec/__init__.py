"""The MTL codec (Message Transport Layer, RFC 11): requests and replies of the control flow, commands of the data flow.

`frames` separates the flows. `control` and `data` decode and encode the messages of each. `table` is the format of
the properties of a Content, `json_body` reads the JSON of requests, `faults` lists the reasons for dropping a message.
`client` is the client side of the control flow.
"""
