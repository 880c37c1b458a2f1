"""What operators type for a protocol of Elko: its ops with parameters, as commands."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import attrs
import msgspec

from broker.core.errors import Malformed, Reason
from broker.wire.elko import broker, director
from broker.wire.elko.common import COMMON
from broker.wire.elko.vocabulary import Message, Vocabulary


@attrs.frozen(eq=False)
class Commands:
    """Those of one protocol.

    ``prefix`` is the word before them, if there is one; ``to`` the object that a message is for, by its op, where that
    is not ``admin``. ``argument`` is the parameter that a word without ``=`` stands for, and ``alone`` what an op means
    to which nothing was added.
    """

    prefix: str
    vocabulary: Vocabulary
    to: Mapping[str, str]
    argument: Mapping[str, str]
    alone: Mapping[str, Mapping[str, object]]
    messages: Mapping[str, type[Message]]

    def message(self, members: dict[str, object]) -> Message:
        """The message that was typed as JSON; ``to`` may be left out. Raises `Malformed`."""
        op = members.get("op")
        members.setdefault("to", self.to.get(op, "admin") if isinstance(op, str) else "admin")
        return self.vocabulary.message(members)

    def typed(self, op: str, words: Sequence[str]) -> Message:
        """The message that was typed as words. Raises `Malformed`."""
        if op not in self.messages:
            raise Malformed(Reason.UNKNOWN_OP, f"there is no command {f'{self.prefix} {op}'.strip()[:40]!r}; try help")
        parameters = dict(self._parameter(op, word) for word in words) if words else self.alone.get(op, {})
        return self.message({"op": op, **parameters})

    def usage(self, op: str) -> str:
        """One op with its parameters."""
        fields = [f for f in msgspec.structs.fields(self.messages[op]) if f.name != "to"]
        shown = [f"{f.encode_name}=..." if f.required else f"[{f.encode_name}=...]" for f in fields]
        return " ".join((*self.prefix.split(), op, *shown))

    def help(self, op: str) -> str:
        """The same, with what the op is for."""
        return f"{self.usage(op)}\n  {' '.join((self.messages[op].__doc__ or '').split())}"

    def _parameter(self, op: str, word: str) -> tuple[str, object]:
        """``name=value``; the value is a string, or JSON where another type is wanted."""
        name, equals, value = word.partition("=")
        if not equals:
            if op not in self.argument:
                raise Malformed(Reason.PARAMETER, f"{op}: {word[:40]!r} is not NAME=VALUE")
            name, value = self.argument[op], word
        if name in _strings(self.messages[op]):
            return name, value
        try:
            return name, msgspec.json.decode(value)
        except msgspec.DecodeError:
            return name, value


def _strings(message: type[Message]) -> set[str]:
    return {f.encode_name for f in msgspec.structs.fields(message) if f.type in (str, str | None)}


def _by_op(*messages: type[Message]) -> dict[str, type[Message]]:
    return {str(message.__struct_config__.tag): message for message in messages}


BROKER = Commands(
    prefix="",
    vocabulary=broker.VOCABULARY,
    to=dict.fromkeys(_by_op(*broker.CLIENT), "client"),
    argument={"servicedesc": "service", "loaddesc": "service", "find": "service", "launch": "name", "ping": "tag"},
    alone={"watch": {"services": True, "load": True}},
    messages=_by_op(*broker.VOCABULARY.messages),
)
"""Those of the Elko Broker."""

DIRECTOR = Commands(
    prefix="director",
    vocabulary=director.VOCABULARY,
    to={"reserve": "director"},
    argument={
        **dict.fromkeys(("find", "watch", "unwatch", "close", "say", "relay", "reserve"), "context"),
        **dict.fromkeys(("reinit", "shutdown"), "provider"),
        "dump": "depth",
        "ping": "tag",
    },
    alone={"dump": {"depth": 1}},
    messages=_by_op(*COMMON, director.Reserve, director.Relay, *director.ADMIN),
)
"""Those of the Elko Director, without what only Context Servers say."""
