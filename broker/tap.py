"""The command line of the twistd plugin, and the service that it makes."""

from __future__ import annotations

import os
import platform
import sqlite3
import sys
from collections.abc import Sequence
from functools import partial
from importlib import metadata
from typing import Any, ClassVar

import attrs
from twisted.application.service import IService
from twisted.python import usage

from broker import blocking
from broker.app.configuration import SCHEMA, Config, example, problems, read, report
from broker.config.cluster_settings import Cluster
from broker.config.daemon_settings import OPEN_FILE, Access, Log
from broker.config.key import Section
from broker.config.key_checks import BadConfig, ConfigError
from broker.config.toml_values import structure
from broker.standard_streams import show
from broker.wires.elko.elko_settings import BrokerListener

PROGRAM = "elkobroker"
"""Name of the program in a sentence about its output."""


class Options(usage.Options):
    """Options of ``twistd elkobroker``."""

    synopsis = "twistd [twistd options] elkobroker [options]"

    # One line: Twisted wraps it, and would keep the indentation of others.
    longdesc = (
        "Runs a broker through which servers find each other. Without options: the Elko Broker protocol on tcp "
        "127.0.0.1:9000, mc0 on tcp 127.0.0.1:61616, DBP on tcp and udp 127.0.0.1:5246, MTL on tcp 127.0.0.1:5975 and "
        "5976, HTTP with the page for operators on http://127.0.0.1:9080/, and the console on 127.0.0.1:9001; with "
        "--director-port, an Elko Director too. Everything else is in the configuration file; options count before it."
    )

    optParameters: ClassVar[list[list[Any]]] = [
        ["port", "p", None, "TCP port of the Elko listener; 0 takes a free one [default: 9000]", int],
        ["bind", "b", None, "Address of the Elko listener [default: 127.0.0.1]"],
        ["config", "c", None, "Configuration file, TOML [default: none]"],
        ["state", "s", None, "State directory, if STATE_DIRECTORY is not set [default: ~/.local/state/elkobroker]"],
        *(
            [section.option.name, None, None, section.option.help]
            for section in SCHEMA.sections
            if section.option is not None
        ),
        [
            "cluster",
            None,
            None,
            "URLs of etcd, with commas between: share a registry with the brokers there [default: none]",
        ],
        ["name", None, None, "Name of this broker in the cluster [default: the host's name]"],
        ["log-format", None, None, "text or json [default: text]"],
        ["log-level", None, None, "debug, info, warn or error [default: info]"],
    ]

    optFlags: ClassVar = [
        [
            "open",
            None,
            "Take the shipped users file by which every peer that reaches a listener may do everything",
        ],
        ["check", None, "Validate the configuration, print its effect, and exit"],
        ["example", None, "Print the example configuration, with every key there is, and exit"],
        ["check-ports", None, "Like --check; try also whether each listener can be opened, and exit with 1 if not"],
    ]

    def opt_help(self) -> None:
        """Display this help and exit."""
        raise SystemExit(show(PROGRAM, str(self)))

    def opt_version(self) -> None:
        """Display the version of the broker, and those of its libraries, and exit."""
        raise SystemExit(show(PROGRAM, version()))

    def postOptions(self) -> None:
        """Read and validate the whole configuration, before twistd does anything."""
        if self["example"]:
            raise SystemExit(show(PROGRAM, example().removesuffix("\n")))
        try:
            config = self.configured()
        except BadConfig as error:
            print(error, file=sys.stderr)
            raise SystemExit(1) from None
        if self["check"] or self["check-ports"]:
            obstacles = self._obstacles(config) if self["check-ports"] else []
            text = "\n".join([report(config), *(f"error: {each}" for each in obstacles)])
            raise SystemExit(show(PROGRAM, text) or int(bool(obstacles)))
        self["configured"] = config

    def _obstacles(self, config: Config) -> Sequence[str]:
        """Return why listeners cannot be opened now."""
        from broker.app import process

        return process.obstacles(config)

    def configured(self) -> Config:
        """Return the configuration of the file, overridden by the command line. Raises `BadConfig`."""
        path = self["config"]
        users = OPEN_FILE if self["open"] else None
        config = Config().using(access=Access(users)) if path is None else read(path, users)
        if users is not None and config.access.file != users:
            raise _bad("open", f"the users file is {config.access.file}, by access.file")
        config = self._with_listener(config)
        for section in SCHEMA.sections:
            given = None if section.option is None else self[section.option.name]
            if section.option is not None and given is not None:
                config = config.using(**{section.name: _moved(section, config, given)})
        config = config.using(cluster=self._with_cluster(config.cluster))
        log = {key: self[f"log-{key}"] for key in ("format", "level") if self[f"log-{key}"] is not None}
        for key, text in structure(dict(log), Log)[1]:
            raise _bad(f"log-{key}", text)
        config = config.using(log=attrs.evolve(config.log, **log))
        wrong = problems(config)
        if wrong:
            raise BadConfig("command line", [ConfigError(None, key, text) for key, text in wrong])
        return config

    def _with_cluster(self, cluster: Cluster) -> Cluster:
        """Replace the endpoints of etcd and the name by those that the command line gives."""
        if self["cluster"] is not None:
            cluster = attrs.evolve(cluster, etcd=tuple(url.strip() for url in self["cluster"].split(",")))
        if self["name"] is not None:
            cluster = attrs.evolve(cluster, name=self["name"])
        return cluster

    def _with_listener(self, config: Config) -> Config:
        """Replace the listeners by the one that the command line describes."""
        given = [name for name in ("port", "bind") if self[name] is not None]
        if not given:
            return config
        if config.elko.listeners != Config().elko.listeners:
            raise _bad(given[0], "describes the one listener, but the configuration file has listeners of its own")
        port = 9000 if self["port"] is None else self["port"]
        bind = "127.0.0.1" if self["bind"] is None else self["bind"]
        interface = bind.strip("[]").replace(":", "\\:")
        listener = BrokerListener(endpoint=f"tcp:{port}:interface={interface}")
        return config.using(elko=attrs.evolve(config.elko, listeners=(listener,)))


def version() -> str:
    """Return the versions of the broker, the interpreter and the libraries: one line."""
    import zmq

    on = {
        "Python": platform.python_version(),
        **{name: metadata.version(name) for name in ("Twisted", "msgspec", "pyzmq")},
        "libzmq": zmq.zmq_version(),
        "SQLite": sqlite3.sqlite_version,
    }
    try:
        ours = metadata.version("elkobroker")
    except metadata.PackageNotFoundError:  # A checkout without installation.
        ours = "of a checkout"
    return f"elkobroker {ours} ({', '.join(map(' '.join, on.items()))})"


def _bad(option: str, text: str) -> BadConfig:
    return BadConfig("command line", [ConfigError(None, f"--{option}", text)])


def _moved(section: Section[Any], config: Config, port: str) -> Any:
    """Return the section with another port, or disabled. Raises `BadConfig`."""
    assert section.option is not None
    if port != "off" and not port.isdigit():
        raise _bad(section.option.name, f"{port!r} is no port, nor 'off'")
    try:
        return section.option.use(getattr(config, section.name), None if port == "off" else int(port))
    except ValueError as error:
        raise _bad(section.option.name, str(error)) from None


def state_directory(options: Options, config: Config, environ: dict[str, str]) -> str:
    """Return the state directory: STATE_DIRECTORY, else ``--state``, else the configuration, else XDG_STATE_HOME."""
    home = environ.get("XDG_STATE_HOME") or os.path.join(os.path.expanduser("~"), ".local", "state")
    given = environ.get("STATE_DIRECTORY", "").split(":")[0] or options["state"] or config.broker.state
    return os.path.abspath(given or os.path.join(home, "elkobroker"))


def makeService(options: Options) -> IService:
    """Return the daemon, not started: nothing is opened here, since twistd may fork afterwards."""
    from broker.net.reactor import install

    install()

    from twisted.internet import reactor

    from broker.app.daemon import Daemon
    from broker.app.wires import WIRES
    from broker.logs.log_destination import LoggedService
    from broker.logs.log_lines import LogControl
    from broker.net.sdnotify import SystemdNotifier

    config: Config = options["configured"]
    logs = LogControl(
        config.log.format,
        config.log.level,
        {each.name: each.level for each in config.log.levels},
        ["console", *(wire.name for wire in WIRES)],
    )
    logs.limit(config.log.file_bytes, config.log.files)

    def end(status: int) -> None:
        blocking.ended()
        logs.finish()
        os._exit(status)

    daemon = Daemon(
        config,
        reactor,
        state_directory(options, config, dict(os.environ)),
        logs,
        SystemdNotifier(os.environ),
        options.configured if options["config"] is not None else None,
        # The traceback of a failed start would hide the sentence with the reason.
        partial(setattr, sys, "tracebacklimit", 0),
        end,
    )
    return LoggedService(daemon, options.parent, logs)
