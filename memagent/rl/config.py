"""Training recipes: all settings of a run. Parsed before anything heavy is imported."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, model_validator

from memagent.config import validate
from memagent.errors import ConfigError
from memagent.settings import Section, put_setting, read_shipped

SHIPPED = Path(__file__).parent / "recipes"


class RolloutRecipe(Section):
    """How trajectories are sampled."""

    prompts: int = Field(128, ge=1)
    """Groups of a step (MemAgent, arXiv 2507.02259, section 4.1)."""
    group_size: int = Field(16, ge=2)
    """Rollouts of a prompt."""
    temperature: float = Field(1.0, gt=0)
    """Sampling temperature."""
    top_p: float = Field(1.0, gt=0, le=1)
    """Nucleus sampling; below 1, the sampling distribution differs from the learner's."""
    teacher: bool = False
    """The readings are the teacher's (`memagent.rl.teacher`), and no engine samples: supervised training. The loss is
    the negative log-likelihood of the responses; no key of ``[loss]`` applies."""
    dynamic_sampling: bool = True
    """Dynamic sampling: replace groups whose rollouts all have the same reward (DAPO, section 3.2)."""
    most_prompts: int = Field(0, ge=0)
    """Groups to sample for a step at most; 0: ten times `prompts`."""
    segments: int = Field(8, ge=1)
    """Segments of a training document at most."""
    oversampling: float = Field(1.0, ge=1, le=4)
    """Groups in flight for each group that a batch still lacks: above 1, engines stay full while the last groups of a
    batch are waited for. Groups that come too late for a batch are of the next one (`max_off_policy_steps`), or else
    are sampled again for it."""
    max_off_policy_steps: int = Field(0, ge=0, le=8)
    """Steps that the sampling weights of a group may lag behind the learner's. Above 0 engines go on sampling while the
    learner works, and take new weights in the middle of a reading and of its responses; each response records the
    version of its last token."""


class RewardRecipe(Section):
    """The reward."""

    weights: dict[str, float] = Field(default_factory=lambda: {"exact": 1.0})
    """Weight of each reward function: of `memagent.rl.reward.FUNCTIONS`, of another package, or ``module:function``."""
    overlong_tokens: int = Field(0, ge=0)
    """Tokens before a response's limit at which its penalty begins (DAPO, equation 13); 0: none."""

    @model_validator(mode="after")
    def _known(self) -> "RewardRecipe":
        from memagent.rl.reward import FUNCTIONS, is_place

        if not self.weights:
            raise ValueError(f"weights are empty; there are {', '.join(FUNCTIONS)}")
        for name in self.weights:
            if not is_place(name) and name not in FUNCTIONS:
                raise ValueError(FUNCTIONS.unknown(name))
        return self


AuditKind = Literal["gold-missing", "rival-answer", "gold-unpaid", "wrong-paid"]
"""The gold is not in the text; a segment of another text answers the question otherwise; the gold is not paid in full;
a wrong answer is paid."""


class AuditRecipe(Section):
    """The audit of tasks before a training (`memagent.rl.audit`)."""

    tasks: int = Field(64, ge=0)
    """Tasks of each data set that are checked; 0: no audit."""
    allowed: dict[AuditKind, float] = Field(default_factory=dict)
    """Share of the tasks that may violate, by kind; by default none."""


class LossRecipe(Section):
    """The loss."""

    objective: Literal["dapo", "gspo", "cispo"] = "dapo"
    """`dapo`: PPO's, clipped by token. `gspo`: clipped by response, on the geometric mean of its tokens' ratios (arXiv
    2507.18071; its bounds are of the order of 3e-4). `cispo`: the ratio is clipped and is a weight without a gradient,
    so that no token is left out (arXiv 2506.13585)."""
    baseline: Literal["mean", "mean-std", "rloo"] = "mean"
    """Advantage within a group; the mean alone is Dr. GRPO's and MemAgent's."""
    normaliser: Literal["tokens", "root", "trajectories", "constant"] = "tokens"
    """Token mean (DAPO, section 3.3), by which a reading weighs as much as it has tokens; `trajectories`: the mean over
    trajectories of each one's token mean (GRPO, arXiv 2402.03300, equation 3), so that all weigh the same; `root`: as
    the square root of their tokens; or a constant count of tokens a trajectory (Dr. GRPO, arXiv 2503.20783)."""
    constant_tokens: int = Field(1024, ge=1)
    """The constant, in tokens a trajectory."""
    clip_low: float = Field(0.2, gt=0, lt=1)
    """How far a probability may fall."""
    clip_high: float = Field(0.2, gt=0)
    """How far a probability may rise; DAPO's clip-higher is 0.28."""
    dual_clip: float = Field(3.0, ge=0)
    """Bound for negative advantages; 0: none."""
    tis_cap: float = Field(2.0, ge=0)
    """Cap of truncated importance sampling, the weight of a token's probability in the learner over that in the engine;
    0: no correction."""
    mask: Literal["none", "tokens", "responses"] = "none"
    """What is left out where learner and engine disagree by more than `mask_above`: a token by the difference of its
    log-probabilities, or a response by the mean of them. It is left out of the mean, too."""
    mask_above: float = Field(1.0, gt=0)
    """The difference, in nats."""
    most_logprob_diff: float = Field(0.2, ge=0)
    """Mean difference, in nats a token, between what engines and learner compute at the first step, above which the run
    ends: 0.015 is usual in bfloat16, and 0.2 means other weights; 0: none."""
    kl_coef: float = Field(0.0, ge=0)
    """Coefficient of the KL term to the reference; at 0 no reference model is loaded."""


class LearnerRecipe(Section):
    """The optimiser and where it runs."""

    minibatch_prompts: int = Field(8, ge=1)
    """Groups of an optimiser step; `rollout.prompts` / this many steps are taken on one batch."""
    lr: float = Field(1e-6, gt=0)
    """Learning rate after the warm-up."""
    warmup_steps: int = Field(20, ge=0)
    """Warm-up of the learning rate, in optimiser steps."""
    lr_schedule: Literal["constant", "linear", "cosine"] = "constant"
    """The learning rate after the warm-up: as it is, or falling to zero at the last step of ``stage.max_steps``."""
    weight_decay: float = Field(0.0, ge=0)
    """AdamW's weight decay."""
    betas: tuple[float, float] = (0.9, 0.999)
    """Decay rates of AdamW's moments."""
    gradient_clip: float = Field(1.0, gt=0)
    """Largest norm of the gradient (clipping)."""
    zero_stage: Literal[1, 2, 3] = 1
    """What DeepSpeed shards over the ranks (ZeRO, arXiv 1910.02054): 1 optimiser states, 2 gradients too, 3 parameters
    too. There is no 0: without ZeRO, DeepSpeed gives a checkpoint no float32 weights of a bfloat16 model."""
    world_size: int = Field(1, ge=1)
    """Learner processes (ranks), one per GPU."""
    gpus: float = Field(0.0, ge=0)
    """Ray GPUs of a rank."""
    cpus: float = Field(1.0, ge=0)
    """Ray CPUs of a rank."""
    threads: int = Field(0, ge=0)
    """Threads of a rank; 0: an even share of the machine's cores."""
    token_budget: int = Field(16384, ge=1)
    """Tokens of a packed micro-batch."""
    share_prefixes: bool = True
    """Compute the common prefix of a group's prompts once: the same result with fewer tokens."""
    dtype: Literal["float32", "bfloat16"] = "float32"
    """Arithmetic of the forward and backward pass; weights are kept in float32."""
    lora_rank: int = Field(0, ge=0)
    """Rank of LoRA adapters on all linear layers (arXiv 2106.09685); 0: train all weights."""
    lora_alpha: float = Field(32.0, gt=0)
    """LoRA's alpha: adapters are scaled by alpha / rank."""
    activation_checkpointing: bool = False
    """Recompute activations in the backward pass to save memory."""
    weight_sync: Literal["files", "broadcast", "adapters"] = "files"
    """How weights go to the engines: as files through Ray's object store and shared memory; over a process group (NCCL
    between GPUs, gloo between CPUs); or LoRA's factors alone, as files, which engines apply beside the model's weights:
    little is sent, and no response is waited for, but each token costs an engine more."""
    placement: Literal["apart", "shared"] = "apart"
    """`apart`: ranks and engines have GPUs of their own. `shared`: rank i and engine i take turns on GPU i: the engines
    sleep while the learner works. The optimiser and its float32 weights are in main memory all the time (ZeRO-Offload,
    arXiv 2101.06840); the rank's shard of the model stays on the GPU. Needs zero_stage 3."""
    restarts: int = Field(2, ge=0)
    """Times that lost ranks are replaced before the run ends; the step in progress is taken again."""


class StageRecipe(Section):
    """Length, checkpoints and validation of a stage."""

    max_steps: int = Field(100, ge=1)
    """Training steps at most."""
    save_every: int = Field(1, ge=1)
    """Steps between checkpoints."""
    export_every: int = Field(0, ge=0)
    """Steps between exports of the weights in Hugging Face format, which are kept; the last step's are kept always."""
    validate_every: int = Field(10, ge=1)
    """Steps between validations."""
    validate_with: int = Field(64, ge=1)
    """Tasks of a validation, sampled greedily; the same ones every time. What a small file repeats is read once."""
    patience: int = Field(5, ge=1)
    """Validations without a better score after which the stage ends."""
    record: bool = False
    """Keep the rollouts of every step, so the run can be repeated without engines."""
    wandb: str = ""
    """Weights & Biases project for the metrics; empty: none. Needs the wandb package."""
    mlflow: str = ""
    """MLflow experiment for the metrics; empty: none. Needs the mlflow package."""
    seed: int = 0
    """Seed of the data's order and of sampling."""


class Recipe(Section):
    """A training run."""

    model: str = "nano"
    """Policy to start from: `nano`, a folder, or a Hugging Face name."""
    reading: dict[str, Any] = Field(default_factory=dict)
    """Reading keys that override the model's own."""
    engine: dict[str, Any] = Field(default_factory=dict)
    """Engine keys of the run (`memagent.config.EngineConfig`)."""
    pool: dict[str, Any] = Field(default_factory=dict)
    """Keys of the rollout workers (`memagent.config.PoolConfig`)."""
    rollout: RolloutRecipe = RolloutRecipe()
    reward: RewardRecipe = RewardRecipe()
    audit: AuditRecipe = AuditRecipe()
    loss: LossRecipe = LossRecipe()
    learner: LearnerRecipe = LearnerRecipe()
    stage: StageRecipe = StageRecipe()

    @property
    def optimiser_steps(self) -> int:
        """Optimiser steps of the whole run."""
        return self.stage.max_steps * (self.rollout.prompts // self.learner.minibatch_prompts)

    @model_validator(mode="after")
    def _batches(self) -> "Recipe":
        if self.rollout.prompts % self.learner.minibatch_prompts:
            raise ValueError(
                f"rollout.prompts {self.rollout.prompts} is no multiple of learner.minibatch_prompts "
                f"{self.learner.minibatch_prompts}"
            )
        if self.rollout.teacher and self.loss != LossRecipe():
            raise ValueError("rollout.teacher has a loss of its own: leave out the keys of [loss]")
        if self.learner.placement == "shared" and self.learner.weight_sync != "files":
            raise ValueError(
                "learner.placement shared needs learner.weight_sync files: two processes on one GPU cannot broadcast "
                "to each other over NCCL, and adapters are not tried with engines that sleep"
            )
        if self.learner.weight_sync == "adapters" and not self.learner.lora_rank:
            raise ValueError("learner.weight_sync adapters needs learner.lora_rank: there is no adapter to send")
        if self.learner.placement == "shared" and self.learner.zero_stage != 3:
            raise ValueError(
                "learner.placement shared needs learner.zero_stage 3: at the other stages a rank's whole model would "
                "stay on the GPU that its engine samples on"
            )
        if self.learner.placement == "shared" and self.rollout.max_off_policy_steps:
            raise ValueError("learner.placement shared needs rollout.max_off_policy_steps 0: engines sleep meanwhile")
        return self


def with_sets(recipe: Recipe, sets: Sequence[str]) -> Recipe:
    """Return a recipe with ``section.key=value`` strings over it.

    Raises:
        ConfigError: a key is unknown or wrong.
    """
    data = recipe.model_dump()
    for item in sets:
        put_setting(data, item)
    return validate(Recipe, data, "")


def load_recipe(name_or_path: str, sets: Sequence[str] = ()) -> Recipe:
    """Load a shipped recipe by name, or a TOML file by path, with ``section.key=value`` strings over it.

    Raises:
        ConfigError: no such recipe, or a key is unknown or wrong.
    """
    path, data = read_shipped(name_or_path, SHIPPED, "recipe")
    try:
        for item in sets:
            put_setting(data, item)
        return validate(Recipe, data, "")
    except ConfigError as error:
        raise ConfigError(f"recipe {path}: {error}") from error
