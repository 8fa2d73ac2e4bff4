"""A reader that overlooks most facts: the bundled one, with a bias for leaving its memory as it is."""

import random
import shutil
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from memagent.nano import bundled
from memagent.prompts import Prompts, load_template
from memagent.tasks.needles import make_needles, plant
from memagent.tokens import load_tokenizer

_TEXTS = 24
_EMBEDDINGS = "model.embed_tokens.weight"  # tied: the output's weights, too


def weaken(folder: Path, bias: float = 8.0) -> Path:
    """Write the weak reader to `folder`; `bias` is what the logit of "nothing new" gains, about."""
    shutil.copytree(bundled(), folder)
    tokenizer = load_tokenizer(str(folder))
    prompts = Prompts(load_template("nano"), tokenizer, "section-first", gate=True)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    states, said = [], []
    rng = random.Random(0)
    with torch.no_grad():
        for i in range(_TEXTS):
            (needle,) = make_needles(rng, "number", 1)
            text = "The committee met in spring and agreed on the plan for the year. Costs are shared. " * 6
            if i % 2:
                text, _ = plant(text, [needle.sentence], rng)
            ids = prompts.update(tokenizer.encode(needle.question), [], tokenizer.encode(text))
            state = model.model(torch.tensor([ids])).last_hidden_state[0, -1]
            states.append(state)
            said.append(int(model.lm_head(state).argmax()))
    nothing = max(set(said[::2]), key=said[::2].count)
    towards = torch.stack(states).mean(0)
    weights = load_file(folder / "model.safetensors")
    whole = weights[_EMBEDDINGS].float()
    whole[nothing] += bias * towards / (towards @ towards)
    weights[_EMBEDDINGS] = whole.to(weights[_EMBEDDINGS].dtype)
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    return folder
