"""On the real model: the document that made a trained probe fire is named, and what that costs beside simpler ways."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from planted_documents import SECRETS_TO_FIND, SECRETS_TO_LEARN, make_prompt

from undercurrent.core import ProbeFactory
from undercurrent.core.builtin import LinearProbe
from undercurrent.core.training import fit_probe
from undercurrent.engines import HFEngine, find_packaged_model
from undercurrent.engines.cache_folder import cache_folder
from undercurrent.engines.coalitions import HFCoalitions
from undercurrent.router import Router
from undercurrent.runtime.domain import Conversation, GenerationConfig
from undercurrent.runtime.pipeline import EstimatorSettings, RunSettings, explain, reanalyze
from undercurrent.spec import TensorType, parse_yaml

pytestmark = [pytest.mark.engines, pytest.mark.timeout(1200)]

LAYER = 12
PROMPT_COUNT = 20
DOCUMENT_COUNT = 5
SPEC = f"""
extraction_points:
  - {{name: secret, layers: {LAYER}, tensor_type: residual_stream, position: "prompt[-1]", probe_type: linear,
      probe_kind: trajectory, execution_mode: inline}}
"""


def learn(engine: HFEngine) -> Any:
    """A probe at the last token of the question, trained on other wordings and on any number of documents."""
    rng = random.Random(1)
    prompts = [
        make_prompt(rng, SECRETS_TO_LEARN, document_count=rng.randrange(1, DOCUMENT_COUNT + 1), has_secret=bool(at % 2))
        for at in range(240)
    ]
    key = (LAYER, TensorType.RESIDUAL_STREAM)
    texts = [Conversation.of({"messages": prompt["messages"]}).text for prompt in prompts]
    rows = np.stack([found[key][-1] for found in engine.read_texts(texts, [key])])
    labels = np.array([prompt["planted"] is not None for prompt in prompts], dtype=int)
    return fit_probe(rows, labels, layer=LAYER, tensor_type="residual_stream", label_names=("harmless", "secret"))


def test_the_planted_document_is_named_in_at_least_16_of_20_prompts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    engine = HFEngine()
    threads = torch.get_num_threads()
    engine.load_model(find_packaged_model(cache_folder() / "models"), dtype="bfloat16", shows_progress=False)
    probe = learn(engine)
    rng = random.Random(2)
    prompts = [
        make_prompt(rng, SECRETS_TO_FIND, document_count=DOCUMENT_COUNT, has_secret=True) for _ in range(PROMPT_COUNT)
    ]
    generation = GenerationConfig(max_new_tokens=1)
    settings = RunSettings(
        players="documents", value="secret", estimator=EstimatorSettings(name="exact"), generation=generation
    )
    named = {"exact": 0, "loo": 0}
    asked = {"exact": 0, "loo": 0, "random": 0}
    try:
        with (
            Router({"linear": ProbeFactory(LinearProbe, {"probe": probe})}) as router,
            HFCoalitions(
                engine, generation, points=parse_yaml(SPEC).extraction_points, router=router, reuses_prefixes=False
            ) as coalitions,
        ):
            for at, prompt in enumerate(prompts):
                run = tmp_path / str(at)
                conversation = {"messages": prompt["messages"]}
                asyncio.run(explain(conversation, coalitions, settings, archive=run, batch_size=16))
                for name in named:
                    found = reanalyze(run, estimator=EstimatorSettings(name=name)).attribution
                    named[name] += found.ranking()[0] == prompt["planted"]
                    asked[name] += found.evaluations
    finally:
        torch.set_num_threads(threads)
    by_chance = random.Random(3)
    named["random"] = sum(by_chance.randrange(DOCUMENT_COUNT) == prompt["planted"] for prompt in prompts)
    with capsys.disabled():
        print(f"\nplanted document named, of {PROMPT_COUNT}:")
        for name in asked:
            print(f"  {name:7} {named[name]:3}  {asked[name] / PROMPT_COUNT:5.1f} generations a prompt")
    assert named["exact"] >= 16
