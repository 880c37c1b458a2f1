"""Errors of msgspec about values as sentences for people. Imports nothing of the daemon."""

from __future__ import annotations

import re

import msgspec

_KINDS = {
    "str": "text",
    "int": "a whole number",
    "float": "a number",
    "bool": "true or false",
    "object": "an object",
    "array": "a list",
    "null": "null",
}
_ERRORS = (
    (re.compile(r"Object missing required field `(\w+)`"), r"{0}\1 is missing"),
    (re.compile(r"Object contains unknown field `(.*)`"), r"{0}\1 is not known"),
    (re.compile(r"Expected `(?:str|array|object)` of length >= 1"), r"{1} must not be empty"),
    (re.compile(r"Expected `str` of length <= (\d+)"), r"{1} must have at most \1 characters"),
    (re.compile(r"Expected `(?:array|object)` of length <= (\d+)"), r"{1} must have at most \1 members"),
    (re.compile(r"Expected `\w+` >= ([\d.e+-]+)"), r"{1} must be at least \1"),
    (re.compile(r"Expected `\w+` <= ([\d.e+-]+)"), r"{1} must be at most \1"),
    (re.compile(r"Expected `\w+` > ([\d.e+-]+)"), r"{1} must be more than \1"),
    (re.compile(r"Expected `\w+` < ([\d.e+-]+)"), r"{1} must be less than \1"),
)
_ENUM = re.compile(r"Invalid enum value (.+)")
_TYPES = re.compile(r"Expected `([\w| ]+)`, got `(\w+)`")


def sentence(error: msgspec.ValidationError) -> str:
    """Return an error as a sentence that begins with the name of the value."""
    what, _, path = str(error).partition(" - at `$")
    path = path.rstrip("`").lstrip(".")
    prefix, name = f"{path}." if path else "", path or "the value"
    for pattern, form in _ERRORS:
        found = pattern.fullmatch(what)
        if found is not None:
            return found.expand(form.replace("{0}", re.sub(r"\\", r"\\\\", prefix)).replace("{1}", name))
    value = _ENUM.fullmatch(what)
    if value is not None:
        return f"{name} cannot be {value[1]}"
    types = _TYPES.fullmatch(what)
    if types is not None:
        expected = " or ".join(dict.fromkeys(_KINDS.get(each, each) for each in types[1].split(" | ")))
        return f"{name} must be {expected}, not {_KINDS.get(types[2], types[2])}"
    return f"{path}: {what}".removeprefix(": ").replace("`", "")
