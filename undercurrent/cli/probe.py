"""`undercurrent probe`: train, test and show saved probes."""

from __future__ import annotations

from undercurrent.cli.probe_show import command as show
from undercurrent.cli.probe_test import command as test
from undercurrent.cli.probe_train import command as train
from undercurrent.cli.verbs import verb_group

__all__ = ["command"]


@verb_group(
    "probe",
    examples=[
        (
            "undercurrent probe train texts.jsonl --model ./my-model --layer 12 --out topic.safetensors",
            "labelled texts in, a probe out",
        ),
        ("undercurrent probe test topic.safetensors other.jsonl --model ./my-model", "its figures on other texts"),
        ("undercurrent probe show topic.safetensors", "what the file holds"),
    ],
)
def command() -> None:
    """Train probes on labelled texts, test them, and show what a file holds."""


for member in (train, test, show):
    command.add_command(member)
