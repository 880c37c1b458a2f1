"""The configuration: declarations of keys, and the TOML file, read as a whole into frozen values."""
