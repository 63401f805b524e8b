"""A small decision model with random weights, in a folder as laya 0.4.15 loads it; and that package, asked about it."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

from undercurrent.benchmarks.peer import made_peer, peer_folder
from undercurrent.benchmarks.predict_peer import PREDICT_PEER

_WORDS = (
    "a the is was my your parcel order bill money card late lost broken wrong paid twice where when why how not no yes"
    " true false level choice score noul question statement holds does delivery billing other about what angry calm"
    ' user support hello please thanks refund : , . ? ! " { } [ ] role content text 0 1 2 3'
)
WORDS = _WORDS.split()
SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")

PEER_PROGRAM = """
import json, sys, warnings
warnings.simplefilter("ignore")
import laya
task = json.load(open(sys.argv[1]))
answers = []
for call in task["calls"]:
    agent = laya.load(task["folder"], device="cpu", **call["load"])
    method = getattr(agent, call["method"])
    answers.append(method(*call["arguments"], **call["options"]))
json.dump({"version": laya.__version__, "answers": answers}, open(sys.argv[2], "w"))
"""


def write_folder(folder: Path, *, seed: int = 0, **config: Any) -> Path:
    """Writes a decision model of 0.3M parameters, its encoder a ModernBERT of 4 layers, and returns the folder."""
    import torch
    from safetensors.torch import save_file
    from transformers import AutoModel, ModernBertConfig

    from undercurrent.engines.checkpoint_laya_network import DecisionNetwork

    settings = {
        "encoder": "tests/tiny-modernbert",
        "head_layers": 2,
        "act_costs": {"escalate": 1.0},
        "max_len": 96,
        "head_max_len": 56,
        "temperature": [1.3, 0.8, 1.1],
        "temperature_by_options": {"choice:3-5": 1.7},
        **config,
    }
    tokenizer = make_tokenizer()
    encoder_config = ModernBertConfig(
        vocab_size=len(tokenizer),
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=4,
        num_attention_heads=4,
        local_attention=16,
        global_attn_every_n_layers=3,
        max_position_embeddings=512,
        pad_token_id=tokenizer.pad_token_id,
        cls_token_id=tokenizer.cls_token_id,
        sep_token_id=tokenizer.sep_token_id,
        bos_token_id=tokenizer.cls_token_id,
        eos_token_id=tokenizer.sep_token_id,
    )
    models: Any = AutoModel
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        network = DecisionNetwork(
            models.from_config(encoder_config),
            head_layers=settings["head_layers"],
            action_count=len(settings["act_costs"]) + 1,
        )
        with torch.no_grad():
            for parameter in network.parameters():
                if parameter.ndim >= 2:
                    # Weights as they are usually begun leave all options nearly equal.
                    parameter.normal_(std=1.5 * parameter.shape[-1] ** -0.5)
    folder.mkdir(parents=True, exist_ok=True)
    encoder_config.save_pretrained(folder / "encoder")
    tokenizer.save_pretrained(folder / "tokenizer")
    (folder / "rl_agent_config.json").write_text(json.dumps(settings))
    save_file({name: part.contiguous() for name, part in network.state_dict().items()}, folder / "model.safetensors")
    return folder


def make_tokenizer() -> Any:
    """Words of a small vocabulary, and their letters; cuts at 20 tokens and pads when called, as published ones do."""
    from tokenizers import Tokenizer
    from tokenizers.models import WordPiece
    from tokenizers.pre_tokenizers import Whitespace
    from tokenizers.processors import TemplateProcessing
    from transformers import PreTrainedTokenizerFast

    letters = "abcdefghijklmnopqrstuvwxyz"
    pieces = [*SPECIAL, *WORDS, *(one for one in letters if one not in WORDS), *(f"##{one}" for one in letters)]
    vocabulary = {piece: index for index, piece in enumerate(pieces)}
    tokenizer = Tokenizer(WordPiece(vocabulary, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = Whitespace()
    tokenizer.post_processor = TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", vocabulary["[CLS]"]), ("[SEP]", vocabulary["[SEP]"])]
    )
    tokenizer.enable_truncation(20)
    tokenizer.enable_padding(pad_id=0, pad_token="[PAD]", length=20)
    wrap: Any = PreTrainedTokenizerFast
    return wrap(
        tokenizer_object=tokenizer,
        pad_token="[PAD]",
        unk_token="[UNK]",
        cls_token="[CLS]",
        sep_token="[SEP]",
        mask_token="[MASK]",
    )


def find_peer() -> Path | None:
    """The interpreter of the venv that `make test-engines` gives that package; None where there is none."""
    return made_peer(peer_folder(PREDICT_PEER, None))


def ask_peer(python: Path, folder: Path, calls: list[dict[str, Any]], scratch: Path) -> list[Any]:
    """What that package answers: each call is a dict of load, method, arguments and options."""
    task, answers = scratch / "task.json", scratch / "answers.json"
    task.write_text(json.dumps({"folder": str(folder), "calls": calls}))
    done = subprocess.run(
        [str(python), "-c", PEER_PROGRAM, str(task), str(answers)],
        cwd=scratch,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    told = json.loads(answers.read_text())
    assert told["version"] == "0.4.15"
    found: list[Any] = told["answers"]
    return found
