"""The DBP codec (Core Catalog Service): frames and datagrams, as the document has them and as Hermes sends them.

Hermes is the original broker and node library. Where the two differ both are read, and what is sent takes the form as a
parameter: only the session knows which kind of peer it speaks to.
"""
