"""Reading one message of an Elko protocol, in both ways that there are."""

from __future__ import annotations

import json
from typing import Any

from broker.core.errors import Malformed
from broker.wires.elko.codec.blocks import BlockReader, Message, Vocabulary


def read(vocabulary: Vocabulary, text: str) -> Message | Malformed:
    """The message in a line."""
    [item] = BlockReader(vocabulary).feed(text.encode() + b"\n")
    assert item is not None
    return item


def say(vocabulary: Vocabulary, op: str, **parameters: Any) -> Message | Malformed:
    """The message as both ways of reading, which must agree, have it."""
    text = json.dumps({"to": "x", "op": op, **{name.rstrip("_"): value for name, value in parameters.items()}})
    fast, lenient = read(vocabulary, text), read(vocabulary, f"/**/{text}")
    if isinstance(fast, Malformed):
        assert isinstance(lenient, Malformed)
        assert (lenient.reason, lenient.text, lenient.op) == (fast.reason, fast.text, fast.op)
    else:
        assert lenient == fast
    return fast
