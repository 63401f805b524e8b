"""Records what a model computes for prompts, with no probe running."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from undercurrent.engines import ActivationRecorder
from undercurrent.engines.base import BatchEngine
from undercurrent.model.construction import refuse_problems
from undercurrent.model.ending import RequestEnder
from undercurrent.model.output import GenerationOutput
from undercurrent.model.running import BatchRunner
from undercurrent.model.settings import check_prompts, read_settings
from undercurrent.spec import ProbeSpec

__all__ = ["record_prompts"]


def record_prompts(
    engine: BatchEngine,
    spec: ProbeSpec,
    recorder: ActivationRecorder,
    prompts: Sequence[str],
    *,
    batch_size: int = 8,
    max_new_tokens: int | None = None,
    temperature: float | None = None,
    top_p: float | None = None,
    seed: int | None = None,
    stop: str | Sequence[str] | None = None,
    **backend_kwargs: Any,
) -> Iterator[GenerationOutput]:
    """Generates for `prompts` as `ProbedModel.generate` does and yields each outcome; the points' probes do not run.

    Raises:
        ProbedModelConfigError: the engine cannot give what the spec reads; said before anything is generated.
        EngineLimitationError: a prompt has no tokens, or the engine cannot generate in this way.
    """
    refuse_problems(spec, engine.capabilities)
    check_prompts(prompts)
    settings = read_settings(
        max_new_tokens=max_new_tokens,
        temperature=temperature,
        top_p=top_p,
        seed=seed,
        stop=stop,
        more=backend_kwargs,
        is_transformers=engine.reads_transformers_arguments,
    )
    # Without probes nothing is drained: requests end on this thread.
    ender = RequestEnder(waits_for_workers=False)
    runner = BatchRunner(engine, spec, feed=recorder, ender=ender, batch_size=batch_size)
    for group in runner.run(prompts, settings):
        for outcome in group:
            if isinstance(outcome, Exception):
                raise outcome
            yield outcome
