"""The DBP codec (Core Catalog Service): frames and datagrams, in the document's form and in that of Hermes.

Hermes is the original broker and node library. If the two differ, the codec parses both; the functions that encode
take the form as a parameter, since only the session knows the kind of its peer. See docs/protocols/dbp.md.
"""
