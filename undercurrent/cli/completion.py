"""`undercurrent completion`."""

from __future__ import annotations

import click

from undercurrent.cli.verbs import NearestChoice, json_option, print_json, verb

__all__ = ["INSTALL_LINES", "command"]

INSTALL_LINES = {
    "bash": "undercurrent completion bash > ~/.local/share/bash-completion/completions/undercurrent",
    "zsh": 'undercurrent completion zsh > "${fpath[1]}/_undercurrent"',
    "fish": "undercurrent completion fish > ~/.config/fish/completions/undercurrent.fish",
}


@verb(
    "completion",
    examples=[(line, shell) for shell, line in INSTALL_LINES.items()]
    + [('eval "$(undercurrent completion bash)"', "for this session only")],
)
@click.argument("shell", type=NearestChoice(list(INSTALL_LINES)), metavar="bash|zsh|fish")
@json_option
def command(shell: str, *, as_json: bool) -> None:
    """Print the script by which a shell completes this command.

    Put it where the shell looks for such scripts and open a new one; the examples are the usual places. Bash needs 4.4
    or later and the package bash-completion.
    """
    script = completion_script(shell)
    if as_json:
        print_json({"shell": shell, "install": INSTALL_LINES[shell], "script": script})
    else:
        click.echo(script)


def completion_script(shell: str) -> str:
    """The script of click for one of the shells."""
    from click.shell_completion import get_completion_class

    from undercurrent.cli.commands import COMPLETE_VARIABLE, undercurrent

    found = get_completion_class(shell)
    assert found is not None
    completion = found(undercurrent, {}, "undercurrent", COMPLETE_VARIABLE)
    # Not `source()`: for bash it starts a bash to ask its version.
    return completion.source_template % completion.source_vars()
