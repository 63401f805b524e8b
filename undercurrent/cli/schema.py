"""`undercurrent schema`."""

from __future__ import annotations

from pathlib import Path

import click

from undercurrent.cli.verbs import json_option, say, verb

__all__ = ["command", "modeline"]


@verb(
    "schema",
    examples=[
        ("undercurrent schema -o probe-spec.schema.json", "for editors"),
        ("undercurrent schema | jq '.\"$defs\".ExtractionPoint.properties | keys'", "every key of a point"),
    ],
    exit_statuses={0: "written", 1: "the file cannot be written"},
)
@click.option("-o", "--output", type=click.Path(dir_okay=False, path_type=Path), help="Write to this file instead.")
@json_option
def command(output: Path | None, *, as_json: bool) -> None:
    """Print the format of specs as JSON Schema.

    Draft 2020-12. An editor with a YAML language server completes and checks a spec whose first line is

    \b
      # yaml-language-server: $schema=./probe-spec.schema.json

    What a schema cannot say (unique names, empty slices, a batch that fits its queue) is checked by `undercurrent
    validate`. The schema is JSON with and without --json.
    """
    import json

    from undercurrent.spec import json_schema

    text = json.dumps(json_schema(), indent=2, ensure_ascii=False) + "\n"
    if output is None:
        click.echo(text, nl=False)
        return
    output.write_text(text, encoding="utf-8")
    say(f"wrote {output}; begin specs beside it with: {modeline(output.name)}")


def modeline(schema_file: str) -> str:
    """The first line of a spec by which editors find its schema, a file beside it."""
    return f"# yaml-language-server: $schema=./{schema_file}"
