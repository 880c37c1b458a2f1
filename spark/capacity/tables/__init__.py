"""Tables of the out directory: schema, storage, and reading by column."""
