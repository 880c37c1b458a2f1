"""The configuration: a TOML file, turned whole into frozen values before anything starts."""
