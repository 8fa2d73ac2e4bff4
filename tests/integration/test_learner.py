"""The learner: real DeepSpeed, one and two ranks, against each other and against plain torch."""

import asyncio
import json
import math
import random
import socket
from dataclasses import replace

import pytest
import torch
from safetensors.torch import load_file, save_file

from examples.nano.export import config
from examples.nano.model import Shape
from infra.learner.checkpoint import write_model
from infra.learner.group import LearnerGroup
from infra.learner.rank import Learner, Rank
from infra.learner.weights import Rendezvous, receive
from memagent.errors import TrainingError
from memagent.rl import model as head
from memagent.rl.config import LearnerRecipe, LossRecipe, Recipe
from memagent.rl.loss import ResponseTokens, token_loss
from memagent.rl.model import load_model
from memagent.rl.packing import Packed, PackedItem, Unit, balance, items, pack, units
from memagent.rl.reward import Reward
from memagent.rl.trajectory import Conversation, Group, Trajectory, with_advantages
from tests.support.ranks import RANKS
from tests.support.rl_samples import group

pytestmark = pytest.mark.filterwarnings("ignore")  # DeepSpeed's own, of torch's coming releases
STEPS = 5
RATE = 1e-3


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    from transformers import Qwen2Config, Qwen2ForCausalLM

    torch.manual_seed(0)
    path = tmp_path_factory.mktemp("model")
    made = config(Shape(vocab=64, hidden=32, layers=2, heads=4, inner=48), 0, 1) | {"torch_dtype": "float32"}
    Qwen2ForCausalLM(Qwen2Config(**json.loads(json.dumps(made)))).save_pretrained(path)
    (path / "reading.json").write_text("{}")
    return path


def recipe(zero=1, ranks=1, budget=64, dtype="float32", **loss):
    sharding = {"zero_stage": zero, "world_size": ranks}
    return Recipe(
        learner=LearnerRecipe(
            **sharding, lr=RATE, warmup_steps=2, token_budget=budget, dtype=dtype, minibatch_prompts=2
        ),
        loss=LossRecipe(**loss),
    )


def low_rank(zero, ranks=1):
    made = recipe(zero, ranks)
    changed = made.learner.model_copy(update={"lora_rank": 4, "lora_alpha": 8.0, "lr": 1e-2})
    return made.model_copy(update={"learner": changed})


def minibatch(step, scale=1.0):
    groups = [with_advantages(group([scale, 0, 0, scale / 2], 10 * step + i)) for i in range(2)]
    return items([trajectory for one in groups for trajectory in one.trajectories])


def share(flat, made, index):
    together = units(flat, made.learner.token_budget)
    bins = balance([unit.tokens for unit in together], made.learner.world_size, made.learner.token_budget)[index]
    tokens = sum(len(item.conversation.response_ids) for item in flat)
    return [pack([together[i] for i in bin_]) for bin_ in bins], tokens


def work(folder, made, rank, out, steps, start=None, save=None):
    """What one rank does; runs in a process of its own."""
    torch.set_num_threads(1)
    learner = Learner(str(folder), made, rank)
    first = 0
    if start is not None:
        learner.load(start)
        first = learner.steps
    for step in range(first, steps):
        learner.learn(*share(minibatch(step), made, rank.index))
    if save is not None:
        list(learner.snapshot().write(save))
    learner.export(out)
    learner.stop()


def train(folder, made, out, steps=STEPS, target=work, **kwargs):
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port = sock.getsockname()[1]
    world = made.learner.world_size
    ranks = [
        RANKS.Process(target=target, args=(folder, made, Rank(i, world, port=port), out, steps), kwargs=kwargs)
        for i in range(world)
    ]
    for process in ranks:
        process.start()
    for process in ranks:
        process.join(300)
        assert process.exitcode == 0
    return load_file(out / "model.safetensors")


def by_hand(folder, steps=STEPS):
    """The same training in plain torch, a conversation at a time."""
    torch.manual_seed(0)
    model = load_model(folder)
    optimiser = torch.optim.AdamW(model.parameters(), lr=RATE, weight_decay=0.0)
    for step in range(steps):
        flat = minibatch(step)
        tokens = sum(len(item.conversation.response_ids) for item in flat)
        optimiser.zero_grad()
        for item in flat:
            row = pack([Unit((item,))])
            ids, positions, targets = (torch.tensor(v) for v in (row.ids, row.positions, row.targets))
            new = model(ids, positions, row.blocks, targets)[0]
            sampled, advantage = torch.tensor(row.logprobs), torch.tensor(row.advantages)
            given = ResponseTokens(new.detach(), sampled, advantage, row.lengths)
            (token_loss(new, given, LossRecipe()).objective / tokens).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for part in optimiser.param_groups:
            part["lr"] = RATE * min(1.0, (step + 1) / 3)
        optimiser.step()
    return {
        name.removeprefix(
            "model.",
        ): value
        for name, value in model.state_dict().items()
    }


@pytest.fixture(scope="module")
def expected(folder):
    return by_hand(folder)


def assert_same(weights, expected, atol=2e-5):
    for name, tensor in weights.items():
        torch.testing.assert_close(
            tensor, expected[name].detach(), atol=atol, rtol=1e-3, msg=lambda m, n=name: f"{n}: {m}"
        )


def _named(name):
    return lambda message: f"{name}: {message}"


def moved(folder, weights):
    before = load_file(folder / "model.safetensors")
    return max((weights[name] - before[name]).abs().max().item() for name in weights)


@pytest.mark.parametrize(
    ("zero", "ranks", "budget"),
    [
        pytest.param(1, 1, 100_000, marks=pytest.mark.slow),
        (1, 2, 64),
        pytest.param(2, 2, 64, marks=pytest.mark.slow),
        (3, 2, 64),
    ],
)
def test_sharding_ranks_and_micro_batches_do_not_show_in_the_weights(folder, expected, tmp_path, zero, ranks, budget):
    weights = train(folder, recipe(zero, ranks, budget), tmp_path / "out")
    assert moved(folder, weights) > 1e-3
    assert_same(weights, expected)


@pytest.mark.slow
def test_low_rank_changes_are_trained_alone_and_merged(folder, tmp_path):
    """Linear layers change by a matrix of the rank, all else stays; sharded and resumed it is the same."""
    base = load_file(folder / "model.safetensors")
    once = train(folder, low_rank(1), tmp_path / "once")
    assert once.keys() == base.keys()
    for name, weight in once.items():
        change = weight.float() - base[name].float()
        linear = name.endswith("proj.weight")
        assert (torch.linalg.matrix_rank(change, tol=1e-6) == 4) if linear else not change.any(), name
    train(folder, low_rank(2, 2), tmp_path / "half", steps=2, save=tmp_path / "checkpoint")
    files = sorted((tmp_path / "checkpoint").glob("weights-*.safetensors"))
    saved = [name for file in files for name in load_file(file)]
    assert len(files) == 2 and len(saved) == len(set(saved))
    assert all(name.endswith((".down", ".up")) for name in saved)
    sharded = train(folder, low_rank(3), tmp_path / "sharded", start=tmp_path / "checkpoint")
    assert_same(sharded, once, atol=2e-4)


@pytest.mark.slow
def test_bfloat16_with_float32_masters_stays_near(folder, expected, tmp_path):
    weights = train(folder, recipe(2, 1, 64, "bfloat16"), tmp_path / "out")
    assert all(tensor.dtype is torch.bfloat16 for tensor in weights.values()), "as the engines sample with them"
    weights = {name: tensor.float() for name, tensor in weights.items()}
    assert_same(weights, expected, atol=4e-3)


@pytest.mark.parametrize("made", [recipe(), low_rank(1)], ids=["all", "LoRA"])
def test_what_is_exported_of_a_16_bit_model_is_what_was_trained(folder, tmp_path, made):
    """Rounded to the folder's own type, most of a change of 1e-5 would be lost."""
    half = tmp_path / "half"
    base = {name: one.to(torch.bfloat16) for name, one in load_file(folder / "model.safetensors").items()}
    write_model(base, folder, half)
    slow = made.model_copy(update={"learner": made.learner.model_copy(update={"lr": 1e-5})})
    exported = train(half, slow, tmp_path / "out", save=tmp_path / "checkpoint")
    assert json.loads((half / "config.json").read_text())["dtype"] == "bfloat16"
    assert json.loads((tmp_path / "out" / "config.json").read_text())["dtype"] == "float32"
    trained = load_file(tmp_path / "checkpoint" / "weights-00001-of-00001.safetensors")
    for name, weight in exported.items():
        layer = name.removesuffix(".weight")
        whole = trained.get(name, base[name].float())
        if f"{layer}.up" in trained:
            whole = whole + 2.0 * trained[f"{layer}.up"] @ trained[f"{layer}.down"]
        assert weight.dtype is torch.float32 and torch.equal(weight, whole), name
    assert any((exported[name] != base[name]).any() for name in base)
    assert_same(dict(load_model(tmp_path / "out").model.named_parameters()), exported, atol=0)


TAUGHT = Recipe.model_validate(
    {
        "rollout": {"teacher": True, "prompts": 6},
        "learner": {"lr": 1e-2, "warmup_steps": 0, "minibatch_prompts": 1, "token_budget": 64},
    }
)


def taught_batch():
    """The same readings six times, so that their probabilities rise far within one batch."""
    said = [conversation for one in group([0, 1], 3).trajectories for conversation in one.conversations]
    said = tuple(replace(one, logprobs=[0.0] * len(one.logprobs)) for one in said)  # as `memagent.rl.teacher` has them
    return [Group(f"t{i}", (Trajectory(f"t{i}", 0, said, Reward(1.0, 1.0, 1.0), advantage=1.0),)) for i in range(6)]


def learning_together(folder, made, rank, out, steps):
    """A rank that does what a group of one rank asks for."""
    torch.set_num_threads(1)
    learner = Learner(str(folder), made, rank)

    class Here(LearnerGroup):
        async def _each(self, method, arguments, **named):
            return [getattr(learner, method)(*arguments[0], **named)]

    taken = asyncio.run(Here(None, made).learn(taught_batch()))
    fall = (taken[0]["nll"] - taken[-1]["nll"]) / taken[0]["tokens"]
    assert len(taken) == 6 and fall > 0.3, f"ratios far above what is clipped: {fall}"
    assert all(one["ratio"] == one["weight"] == one["tokens"] for one in taken)
    assert not any(one[name] for one in taken for name in ("clipped_low", "clipped_high", "clipped_dual", "masked"))
    learner.export(out)
    learner.stop()


def test_a_teachers_readings_are_learnt_by_their_plain_likelihood_in_every_step_of_a_batch(folder, tmp_path):
    model = load_model(folder)
    optimiser = torch.optim.AdamW(model.parameters(), lr=TAUGHT.learner.lr, weight_decay=0.0)
    for one in taught_batch():
        optimiser.zero_grad()
        flat = items(one.trajectories)
        tokens = sum(len(item.conversation.response_ids) for item in flat)
        for item in flat:
            row = pack([Unit((item,))])
            ids, positions, targets = (torch.tensor(v) for v in (row.ids, row.positions, row.targets))
            (-model(ids, positions, row.blocks, targets)[0].sum() / tokens).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()
    expected = {name.removeprefix("model."): one for name, one in model.state_dict().items()}
    assert_same(train(folder, TAUGHT, tmp_path / "out", target=learning_together), expected, atol=1e-4)


def all_sharded():
    """Shard every parameter, also those that are below DeepSpeed's threshold; score eight tokens at a time."""
    from infra.learner import rank as module

    settings = module._settings
    sharded = {"stage3_param_persistence_threshold": 0}
    module._settings = lambda *given: (
        settings(*given) | {"zero_optimization": settings(*given)["zero_optimization"] | sharded}
    )
    head._LOGITS_BYTES = 8 * 4 * 64
    torch.set_num_threads(1)


def uneven(folder, made, rank, out, steps):
    """A rank of a model of which every parameter is sharded, with many response tokens on the first rank only."""
    all_sharded()
    learner = Learner(str(folder), made, rank)
    rows, tokens = uneven_rows()
    mine = rows if rank.world == 1 else [rows[rank.index]]
    for _ in range(steps):
        learner.score(mine)
        learner.learn(mine, tokens)
    learner.learn(mine[:1] if rank.index == 0 else [Packed([], [], [], [], [], [])], tokens)
    learner.export(out)
    learner.stop()


def uneven_rows():
    """Two micro-batches, of 44 and of 3 response tokens."""
    rng = random.Random(0)
    rows = []
    for size, advantage in ((44, 1.0), (3, -1.0)):
        said = [rng.randrange(2, 64) for _ in range(size)]
        conversation = Conversation([rng.randrange(2, 64) for _ in range(9)], said, [-4.0] * size, "update")
        rows.append(pack([Unit((PackedItem(conversation, advantage),))]))
    return rows, 47


@pytest.mark.parametrize("reference", [0.0, 0.01])
def test_ranks_with_different_numbers_of_response_tokens_meet_in_the_same_collectives(folder, tmp_path, reference):
    made = recipe(3, 2, budget=4096, kl_coef=reference)
    weights = train(folder, made, tmp_path / "sharded", steps=2, target=uneven)
    plain = recipe(1, 1, budget=4096, kl_coef=reference)
    assert_same(weights, train(folder, plain, tmp_path / "plain", steps=2, target=uneven))


def sending(folder, made, rank, out, steps):
    """A rank that scores, learns and sends its weights to an engine's process, which the first rank starts."""
    all_sharded()
    learner = Learner(str(folder), made, rank)
    rows, tokens = uneven_rows()
    for _ in range(steps):
        old = learner.score([rows[rank.index]])
        learner.learn([rows[rank.index]], tokens, old)
    meeting = Rendezvous("127.0.0.1", _port(), 2, learner.layout())
    engine = RANKS.Process(target=receiving, args=(meeting, out))
    if rank.index == 0:
        out.mkdir()
        engine.start()
    learner.send(meeting)
    if rank.index == 0:
        engine.join()
        assert engine.exitcode == 0
    learner.export(out)
    learner.stop()


def receiving(meeting, out):
    weights = {name: weight.clone() for name, weight in receive(meeting, 1, torch.device("cpu"))}
    save_file(weights, out / "received")


def test_sharded_ranks_score_learn_and_broadcast_what_they_export(folder, tmp_path):
    weights = train(folder, recipe(3, 2, budget=4096, kl_coef=0.01), tmp_path / "out", steps=2, target=sending)
    assert moved(folder, weights) > 1e-4
    received = load_file(tmp_path / "out" / "received")
    assert received.keys() == weights.keys()
    assert_same(received, weights, atol=0)


@pytest.mark.parametrize(("zero", "ranks"), [pytest.param(1, 1, marks=pytest.mark.slow), (3, 2)])
def test_a_training_goes_on_from_its_checkpoint(folder, expected, tmp_path, zero, ranks):
    made = recipe(zero, ranks)
    train(folder, made, tmp_path / "half", steps=2, save=tmp_path / "checkpoint")
    again = recipe(2 if zero == 1 else zero, ranks)  # and with another sharding
    assert_same(train(folder, again, tmp_path / "out", start=tmp_path / "checkpoint"), expected)


class TestInProcess:
    """One rank in this process. DeepSpeed starts once a process, so each test begins with a first checkpoint."""

    @pytest.fixture(scope="class")
    def started(self, folder, tmp_path_factory):
        made = Learner(str(folder), recipe(), Rank(port=_port()))
        first = tmp_path_factory.mktemp("first")
        list(made.snapshot().write(first))
        yield made, first
        made.stop()

    @pytest.fixture
    def learner(self, started):
        made, first = started
        made.load(first)
        return made

    def test_zero_advantages_move_nothing(self, learner, folder, tmp_path):
        flat = items(with_advantages(group([1, 1, 1])).trajectories)
        rows, tokens = share(flat, recipe(), 0)
        counts = learner.learn(rows, tokens)
        learner.export(tmp_path / "out")
        assert moved(folder, load_file(tmp_path / "out" / "model.safetensors")) == 0.0
        assert counts["gradient_norm"] == 0.0 and counts["tokens"] == tokens

    def test_a_loss_that_is_no_number_is_not_learnt(self, learner, folder, tmp_path):
        rows, tokens = share(minibatch(0, scale=float("1e39")), recipe(), 0)
        with pytest.raises(TrainingError, match="finite"):
            learner.learn(rows, tokens)
        learner.export(tmp_path / "out")
        assert moved(folder, load_file(tmp_path / "out" / "model.safetensors")) == 0.0
        assert learner.steps == 0
        learner.learn(*share(minibatch(0), recipe(), 0))
        assert learner.steps == 1

    def test_the_export_is_a_model_folder(self, learner, folder, tmp_path):
        learner.export(tmp_path / "out")
        assert {path.name for path in (tmp_path / "out").iterdir()} >= {
            "config.json",
            "reading.json",
            "model.safetensors",
        }
        assert load_model(tmp_path / "out") is not None

    def test_scores_are_those_of_the_present_weights(self, learner, folder):
        rows, tokens = share(minibatch(3), recipe(), 0)
        before = learner.score(rows)
        learner.learn(rows, tokens, before)
        assert learner.score(rows) != before

    def test_a_broken_checkpoint_is_refused(self, learner, tmp_path):
        with pytest.raises(TrainingError, match="cannot be loaded"):
            learner.load(tmp_path)
        (moments,) = (path for path in learner.snapshot().write(tmp_path) if path.name.startswith("exp_avg-"))
        moments.write_bytes(b"cut")
        with pytest.raises(TrainingError, match="cannot be loaded"):
            learner.load(tmp_path)

    def test_a_bandit_with_a_known_best_answer_is_solved(self, learner):
        """One prompt, one token to say; only token 7 is paid."""
        rng = random.Random(0)
        policy = _policy(learner)
        for _ in range(300):
            said = rng.choices(range(64), policy, k=32)
            arms = Group("b", tuple(_armed(token, policy) for token in said))
            if arms.has_signal:
                learner.learn(*share(items(with_advantages(arms).trajectories), recipe(budget=4096), 0))
            policy = _policy(learner)
            if policy[7] > 0.9:
                break
        assert policy[7] > 0.9


def _armed(token, policy):
    paid = float(token == 7)
    said = Conversation([1, 2, 3], [token], [math.log(policy[token])], "answer")
    return Trajectory("b", 0, (said,), Reward(paid, paid, paid))


def _policy(learner):
    """The probability of each token after the bandit's prompt."""
    row = pack([Unit((PackedItem(Conversation([1, 2, 3], [token], [0.0], "answer"), 0.0),)) for token in range(64)])
    return [math.exp(value) for value in learner.score([row])[0]]


def _port():
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return sock.getsockname()[1]
