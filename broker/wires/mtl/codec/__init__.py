"""The MTL codec (Message Transport Layer, RFC 11): requests and replies of the control flow, commands of the data flow.

`control_messages` and `data_messages` decode and encode the messages of each flow, `client_messages` has the client's
side of the control flow. `field_table` is the format of the properties of a Content.
"""
