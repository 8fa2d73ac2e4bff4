"""A reader that overlooks most facts: the bundled one, with a bias for leaving its memory as it is."""

import random
import shutil
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from memagent.evaluation.needles import make_needles, plant
from memagent.nano import bundled
from memagent.reading.prompts import Prompts, load_template
from memagent.reading.tokens import load_tokenizer
from tests.e2e.conftest import PROSE

_TEXTS = 60
_EMBEDDINGS = "model.embed_tokens.weight"  # tied: the output's weights, too


def weaken(folder: Path, times: float = 1.4) -> Path:
    """Write the weak reader to `folder`; the bias is so many times what the clearest of some facts is noted by."""
    shutil.copytree(bundled("sft"), folder)
    tokenizer = load_tokenizer(str(folder))
    prompts = Prompts(load_template("nano"), tokenizer, "section-first", gate=True)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    rng = random.Random(0)
    states = []
    for i in range(_TEXTS):
        needles = make_needles(rng, "number", 2)
        text = " ".join(rng.choice(PROSE.split(". ")) + "." for _ in range(20))
        if i % 2:
            text, _ = plant(text, [one.sentence for one in needles], rng)
        ids = prompts.update(tokenizer.encode(needles[0].question), [], tokenizer.encode(text))
        with torch.no_grad():
            states.append(model.model(torch.tensor([ids])).last_hidden_state[0, -1])
    h = torch.stack(states)
    with torch.no_grad():
        logits = model.lm_head(h)
    nothing = int(logits[::2].sum(0).argmax())
    towards = h.mean(0) / h.mean(0).square().sum()
    noting = logits.argmax(-1) != nothing
    margins = (logits.max(-1).values - logits[:, nothing])[noting] / (h[noting] @ towards)
    weights = load_file(folder / "model.safetensors")
    whole = weights[_EMBEDDINGS].float()
    whole[nothing] += times * margins.max() * towards
    weights[_EMBEDDINGS] = whole.to(weights[_EMBEDDINGS].dtype)
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    return folder
