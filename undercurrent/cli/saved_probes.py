"""Whether the points of a spec have probes that fit them, asked before anything runs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from undercurrent.cli.verbs import CLIError
from undercurrent.errors import RouterError, UndercurrentError

if TYPE_CHECKING:
    from undercurrent.engines import EngineCapabilities
    from undercurrent.spec import ExtractionPoint, ProbeSpec

__all__ = ["probe_problems", "require_probes", "saved_probe_problems"]


def probe_problems(spec: ProbeSpec, capabilities: EngineCapabilities | None) -> list[list[str]]:
    """For each point what the router would refuse, or what the file of a saved probe says against it."""
    from undercurrent.router import Router

    problems = []
    with Router() as router:
        for point in spec:
            try:
                router.check([point])
            except RouterError as error:
                problems.append([str(error)])
            else:
                problems.append(saved_probe_problems(point, capabilities))
    return problems


def require_probes(spec: ProbeSpec) -> None:
    """Asks for the probes of a spec before a model is loaded, which takes longest.

    Raises:
        RouterError: a point's probe is not registered or does not fit it.
        CLIError: the file of a saved probe is missing, or does not belong to its point.
    """
    from undercurrent.router import Router

    with Router() as router:
        router.check(spec)
    problems = [text for point in spec for text in saved_probe_problems(point, None)]
    if problems:
        raise CLIError("\n".join(problems))


def saved_probe_problems(point: ExtractionPoint, capabilities: EngineCapabilities | None) -> list[str]:
    """One sentence per reason why a built-in probe would fail at its first record; empty for every other probe.

    Reads the file and makes the probe, which runs no code of anyone else.
    """
    from undercurrent.core import get_probe_factory, load_probe
    from undercurrent.core.builtin import BuiltinProbe

    factory = get_probe_factory(point.probe_type)
    if not issubclass(factory.probe_cls, BuiltinProbe):
        return []
    where = f"extraction point {point.name!r}"
    arguments = {**factory.probe_kwargs, **point.probe_args}
    try:
        factory.spawn("validate", point.name, **point.probe_args)
        if "file" not in arguments:
            return []
        saved = load_probe(arguments["file"])
    except (UndercurrentError, OSError) as error:
        return [f"{where}: {error}"]
    problems = []
    wrong = [layer for layer in point.layers if layer != saved.layer]
    if not arguments.get("any_layer") and (wrong or point.tensor_type != saved.tensor_type):
        problems.append(
            f"{where}: layers {list(point.layers)} of {point.tensor_type.value!r} go to a probe trained on layer"
            f" {saved.layer} of {saved.tensor_type!r}; change the point, or set `any_layer: true` in its `probe_args`"
        )
    if capabilities is not None and saved.hidden_size != capabilities.hidden_size:
        problems.append(
            f"{where}: its probe was trained on {saved.hidden_size} values a token"
            f"{'' if saved.model is None else f' of {saved.model!r}'}, the model has {capabilities.hidden_size}"
        )
    return problems
