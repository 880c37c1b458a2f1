"""The shape of the whole configuration: a section for the daemon's own parts, and one for each wire.

`Schema.config` is a frozen attrs class with an attribute for each section, so that `broker.config.load` reads it,
`broker.config.reload` compares it and `broker.config.validate` checks it without knowing which sections there are.
`broker.app.configuration` has the schema of this daemon.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, Self

import attrs

from broker.config.checks_settings import Checks, Journal
from broker.config.cluster_settings import Cluster
from broker.config.daemon_settings import AFTER, BEFORE, Access, Broker, Console, Launchers, Log, Plan
from broker.config.section import Section


@attrs.frozen(init=False, slots=False)
class Config:
    """A configuration: an attribute for each section. Made by `Schema.config`, which has those of the wires too."""

    broker: Broker
    log: Log
    checks: Checks
    journal: Journal
    console: Console
    launchers: Launchers
    cluster: Cluster
    access: Access
    plan: Plan

    def using(self, **sections: Any) -> Self:
        """Return a copy with other sections."""
        return attrs.evolve(self, **sections)

    if TYPE_CHECKING:

        def __init__(self, **sections: Any) -> None: ...

        def __getattr__(self, name: str) -> Any: ...


@attrs.frozen(eq=False)
class Schema:
    """The sections in their order: those of the daemon, with those of the wires between."""

    sections: tuple[Section[Any], ...]
    config: type[Config]
    """The class of the configuration."""

    @classmethod
    def of(cls, wires: Iterable[Section[Any]]) -> Schema:
        """Return the schema of a daemon with these wires."""
        sections: tuple[Section[Any], ...] = (*BEFORE, *wires, *AFTER)
        order = {section.name: number for number, section in enumerate(sections)}

        def ordered(made: type, fields: list[Any]) -> list[Any]:
            return sorted(fields, key=lambda field: order[field.name])

        members = {each.name: attrs.field(default=each.default, type=each.values) for each in sections}
        config = attrs.make_class("Config", members, bases=(Config,), frozen=True, field_transformer=ordered)
        return cls(sections, config)

    def values(self, config: Config) -> Iterator[tuple[Section[Any], Any]]:
        """Yield each section with its values in ``config``."""
        for section in self.sections:
            yield section, getattr(config, section.name)

    def example(self) -> str:
        """Return the example file: every key there is, with its default or a value that it may have."""
        from broker.config.document import HEAD, example

        return HEAD + "\n".join(example(each.name, each.default) for each in self.sections)
