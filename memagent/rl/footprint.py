"""What a training needs: memory of a rank, disk, tokens and floating-point operations of a step. Pure arithmetic.

Every number is a sum of named parts, each with the formula that it comes from, so that a plan can be checked by hand.
Parameters and activations are held against real models in the tests.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from memagent.errors import ConfigError
from memagent.rl.config import Recipe

GIB = 2**30
FAMILIES = {
    "gemma3_text": "Gemma 3, text only",
    "llama": "Llama 2 and 3, SmolLM2 and others",
    "mistral": "Mistral",
    "phi3": "Phi 3 and 4",
    "qwen2": "Qwen 2 and 2.5",
    "qwen3": "Qwen 3",
}
"""Model types of transformers that are trained: tests hold each against its own attention, head and parameters."""
_FLOAT32 = 4
_ACTIVATIONS = {"float32": 9, "bfloat16": 11}
"""Hidden-sized tensors that a layer keeps for its backward pass; in bfloat16 its norms keep float32 copies."""
_ENDS = {"float32": 2, "bfloat16": 3}
"""The same of the embedding and the last norm."""
_LOGITS = 512 * 2**20
"""Bytes of the logits in memory at once (`memagent.rl.model`), of which the gradient needs as many again."""
_ASLEEP = 2 * GIB
"""What an engine that sleeps leaves on its GPU."""
_RUNTIME = 3 * GIB
"""CUDA context, NCCL's buffers and what the allocator leaves unused."""


@dataclass(frozen=True, slots=True)
class ModelShape:
    """Sizes of a dense decoder-only transformer."""

    hidden: int
    layers: int
    heads: int
    kv_heads: int
    head_size: int
    intermediate: int
    vocabulary: int
    tied: bool
    """Whether the output layer shares the embedding's weights."""
    biases: int
    """Elements of a layer's attention biases, norms of heads, and norms beyond two."""

    @classmethod
    def of(cls, config: Mapping[str, Any]) -> "ModelShape":
        """Read a ``config.json``.

        Raises:
            ConfigError: it is of another kind of model, or a size is missing.
        """
        kind = str(config.get("model_type", ""))
        check_family(kind)
        try:
            hidden, heads = int(config["hidden_size"]), int(config["num_attention_heads"])
            kv_heads = int(config.get("num_key_value_heads") or heads)
            size = int(config.get("head_dim") or hidden // heads)
            own = {"qwen2": (heads + 2 * kv_heads) * size, "qwen3": 2 * size}
            own["gemma3_text"] = 2 * int(config["hidden_size"]) + 2 * size
            biases = own.get(kind, 0)
            return cls(
                hidden=hidden,
                layers=int(config["num_hidden_layers"]),
                heads=heads,
                kv_heads=kv_heads,
                head_size=size,
                intermediate=int(config["intermediate_size"]),
                vocabulary=int(config["vocab_size"]),
                tied=bool(config.get("tie_word_embeddings", kind == "gemma3_text")),
                biases=biases,
            )
        except KeyError as error:
            raise ConfigError(f"config.json has no {error.args[0]}") from error

    @property
    def embedding(self) -> int:
        """Parameters of the embedding, and of the output layer where it has its own."""
        return self.vocabulary * self.hidden

    @property
    def layer(self) -> int:
        """Parameters of a layer."""
        attention = 2 * self.hidden * self.heads * self.head_size + 2 * self.hidden * self.kv_heads * self.head_size
        return attention + 3 * self.hidden * self.intermediate + 2 * self.hidden + self.biases

    @property
    def parameters(self) -> int:
        """Parameters of the model."""
        return self.layers * self.layer + self.hidden + self.embedding * (1 if self.tied else 2)

    def lora_parameters(self, rank: int) -> int:
        """Parameters of LoRA factors on all linear layers but the output."""
        query, key = self.heads * self.head_size, self.kv_heads * self.head_size
        sides = 2 * (self.hidden + query) + 2 * (self.hidden + key) + 3 * (self.hidden + self.intermediate)
        return self.layers * rank * sides

    def kv_bytes(self) -> int:
        """Bytes of a token in an engine's key-value cache, in 16 bits."""
        return 2 * self.layers * self.kv_heads * self.head_size * 2

    def forward_flops(self, tokens: float, attended: float) -> float:
        """Floating-point operations of a forward pass: 2 a parameter and token, 4 a head's element and pair of tokens.

        Each of the computed `tokens` attends to `attended` of them on average.
        """
        weights = self.layers * self.layer + self.embedding
        return tokens * (2.0 * weights + 4.0 * self.layers * self.heads * self.head_size * attended)


def check_family(kind: str) -> None:
    """Refuse a type of model that is not among `FAMILIES`.

    Raises:
        ConfigError: naming those that are.
    """
    if kind not in FAMILIES:
        known = "; ".join(f"{name} ({what})" for name, what in sorted(FAMILIES.items()))
        raise ConfigError(
            f"models of type {kind or 'unknown'!r} cannot be trained: what the learner computes was compared with the "
            f"model's own for {known}. They can be read with."
        )


@dataclass(frozen=True, slots=True)
class MemoryPart:
    """A part of a sum, in bytes."""

    name: str
    bytes: float
    why: str
    """The formula, in words and numbers."""

    @property
    def gib(self) -> float:
        """The same in GiB."""
        return self.bytes / GIB


def rank_memory(shape: ModelShape, recipe: Recipe) -> list[MemoryPart]:
    """Return what a learner's rank holds on its GPU at its peak, part by part (ZeRO, arXiv 1910.02054, section 3)."""
    learner = recipe.learner
    stage, shared = learner.zero_stage, learner.placement == "shared"
    width = weight_bytes(recipe)
    gathered = (2 * shape.layer + shape.embedding) * width if stage == 3 else 0
    tokens = learner.token_budget
    layer = tokens * width * _layer_elements(shape, learner.dtype)
    row = tokens * width * shape.hidden
    ends = row * _ENDS[learner.dtype]
    activations = ends + (shape.layers * row + layer if learner.activation_checkpointing else shape.layers * layer)
    kept = "input of each layer and all of one" if learner.activation_checkpointing else "all layers"
    head = 0 if learner.lora_rank else shape.embedding * _FLOAT32
    parts = [
        model_shard(shape, recipe),
        MemoryPart("gathered layers", gathered, f"two layers and an embedding x {width} bytes (ZeRO-3 gathers them)"),
        *([] if shared else optimizer_states(shape, recipe)),
        *reference(shape, recipe),
        MemoryPart("activations", activations, f"{tokens:,} tokens, {kept}"),
        MemoryPart("logits", 2 * _LOGITS + head, "a chunk, its gradient, and the output layer's in float32"),
        MemoryPart("runtime", _RUNTIME if learner.gpus else 0, "CUDA, NCCL, allocator"),
        MemoryPart("a sleeping engine", _ASLEEP if learner.gpus and shared else 0, "its CUDA context"),
    ]
    return [part for part in parts if part.bytes]


def weight_bytes(recipe: Recipe) -> int:
    """Return the bytes of a weight in training, and so in engines and in every model that is written."""
    return 2 if recipe.learner.dtype == "bfloat16" else _FLOAT32


def model_shard(shape: ModelShape, recipe: Recipe) -> MemoryPart:
    """Return the weights of a rank, which stay on its GPU also while it is an engine's turn."""
    learner, width = recipe.learner, weight_bytes(recipe)
    shards = learner.world_size if learner.zero_stage == 3 else 1
    why = f"{counted(shape.parameters)} x {width} bytes" + (f" / {shards} ranks" if shards > 1 else "")
    return MemoryPart("weights", shape.parameters * width / shards, why)


def optimizer_states(shape: ModelShape, recipe: Recipe) -> list[MemoryPart]:
    """Return what the optimiser of a rank holds: on its GPU, or in main memory where an engine shares that."""
    learner = recipe.learner
    trained = shape.lora_parameters(learner.lora_rank) if learner.lora_rank else shape.parameters

    def part(name: str, width: int, since: int) -> MemoryPart:
        shards = learner.world_size if learner.zero_stage >= since else 1
        share = f" / {shards} ranks" if shards > 1 else ""
        return MemoryPart(name, trained * width / shards, f"{counted(trained)} x {width} bytes{share}")

    return [
        part("gradients", _FLOAT32, 2),
        part("float32 weights", _FLOAT32, 1),
        part("Adam's moments", 2 * _FLOAT32, 1),
    ]


def reference(shape: ModelShape, recipe: Recipe) -> list[MemoryPart]:
    """Return the reference of the KL term, if there is one; every rank has the whole of it."""
    if not recipe.loss.kl_coef:
        return []
    width = weight_bytes(recipe)
    return [MemoryPart("reference", shape.parameters * width, f"{counted(shape.parameters)} x {width} bytes, whole")]


def _layer_elements(shape: ModelShape, dtype: str) -> float:
    """Return the elements that a layer keeps of each token for its backward pass."""
    query, key = shape.heads * shape.head_size, shape.kv_heads * shape.head_size
    hidden = _ACTIVATIONS[dtype] - 2
    return hidden * shape.hidden + 2 * query + 2 * key + 4 * shape.intermediate


def disk(shape: ModelShape, recipe: Recipe) -> list[MemoryPart]:
    """Return what a run keeps in the store, and what a node needs for a moment."""
    learner, width = recipe.learner, weight_bytes(recipe)
    model, each = shape.parameters * width, f"{counted(shape.parameters)} x {width} bytes"
    trained = shape.lora_parameters(learner.lora_rank) if learner.lora_rank else shape.parameters
    checkpoint = 3 * trained * _FLOAT32
    exports = -(-recipe.stage.max_steps // (recipe.stage.export_every or recipe.stage.max_steps))
    return [
        MemoryPart("checkpoints", 2 * checkpoint, f"{counted(trained)} x 12 bytes, the last and the one being written"),
        MemoryPart(
            "models", (3 + exports) * model, f"{each}: the best, its successor, {exports} exports, the candidate"
        ),
        MemoryPart(
            "temporary, all nodes together",
            checkpoint / 3 + model,
            f"{counted(trained)} x 4 bytes, a part of a checkpoint that is uploaded, and the exported model",
        ),
    ]


@dataclass(frozen=True, slots=True)
class StepTokens:
    """Tokens of a training step."""

    conversations: int
    prompt: float
    """Of all prompts."""
    response: float
    """Of all responses, which are trained on."""
    computed: float
    """That the learner computes, with shared prefixes once."""
    prefilled: float
    """That engines compute of prompts, with prefixes from the cache."""
    attended: float
    """That a computed token attends to, on average."""

    @property
    def sampled(self) -> float:
        """Of prompts and responses."""
        return self.prompt + self.response


_HEAD = 120
"""Tokens of a template and a question."""


def step_tokens(recipe: Recipe, fill: float = 0.5) -> StepTokens:
    """Count the tokens of a step, of which memories and answers fill a share of their limits.

    The recipe's `[reading]` must give `segment_tokens`, `memory_tokens` and `answer_tokens`.

    Raises:
        ConfigError: a limit is missing.
    """
    reading, rollout = recipe.reading, recipe.rollout
    try:
        segment, memory, answer = (int(reading[f"{name}_tokens"]) for name in ("segment", "memory", "answer"))
    except KeyError as error:
        raise ConfigError(f"[reading] of the recipe needs {error.args[0]} for a plan") from error
    groups, size, turns = rollout.prompts, 1 if rollout.teacher else rollout.group_size, rollout.segments
    memory, answer = round(memory * fill), round(answer * fill)
    prompt = turns * (_HEAD + segment) + (turns - 1) * memory + _HEAD + memory
    response = turns * memory + answer
    first = reading.get("layout") == "section-first" and recipe.learner.share_prefixes
    # Of a group's turn: the whole prompt of the first, whose memory is empty; then template and segment, or template.
    shared = (_HEAD + segment) + (turns - 1) * (_HEAD + segment if first else _HEAD) + _HEAD
    own = prompt - shared
    computed = groups * (shared + size * (own + response)) if recipe.learner.share_prefixes else 0.0
    per_group = size * (prompt + response)
    length = (prompt + response) / (turns + 1)
    return StepTokens(
        conversations=groups * size * (turns + 1),
        prompt=groups * size * prompt,
        response=groups * size * response,
        computed=computed or groups * per_group,
        prefilled=groups * (shared + size * own),
        attended=length / 2 if not first else (segment + _HEAD + length) / 2,
    )


def learner_flops(shape: ModelShape, recipe: Recipe, tokens: StepTokens) -> float:
    """Return the operations of a step's passes: a backward pass is two forward ones, checkpointing adds one."""
    passes = 3 + recipe.learner.activation_checkpointing
    # Log-probabilities before the first update.
    passes += recipe.rollout.prompts > recipe.learner.minibatch_prompts and not recipe.rollout.teacher
    passes += bool(recipe.loss.kl_coef)
    return passes * shape.forward_flops(tokens.computed, tokens.attended)


def counted(parameters: float) -> str:
    """Format a number of parameters: 1.75 billion, 3.2 million."""
    return f"{parameters / 1e9:.2f} billion" if parameters >= 1e8 else f"{parameters / 1e6:.1f} million"
