"""The command ``completion``: scripts for shells."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

INSTALL = {
    "bash": "~/.local/share/bash-completion/completions/brokerctl",
    "zsh": "a directory of $fpath, as _brokerctl",
    "fish": "~/.config/fish/completions/brokerctl.fish",
}
"""The places that shells read scripts from."""


@click.command()
@click.argument("shell", type=click.Choice(list(INSTALL)))
@click.pass_context
def completion(context: click.Context, shell: str) -> None:
    """Print the script that completes commands and options in a shell.

    \b
    bash: brokerctl completion bash > ~/.local/share/bash-completion/completions/brokerctl
    zsh:  brokerctl completion zsh > _brokerctl, in a directory of $fpath
    fish: brokerctl completion fish > ~/.config/fish/completions/brokerctl.fish
    """
    made = get_completion_class(shell)
    assert made is not None
    # source() would start bash to learn its version; all versions in use have what the script needs.
    script = made(context.find_root().command, {}, "brokerctl", "_BROKERCTL_COMPLETE")
    click.echo(script.source_template % script.source_vars())
