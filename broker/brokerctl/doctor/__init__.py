"""Examinations of this machine, of the files of a broker, and of a running broker."""
