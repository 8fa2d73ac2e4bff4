"""A compact Qwen2 in torch, for training; its weights carry Hugging Face's names.

Everything but attention runs on one flat list of tokens. Attention knows two shapes: a causal prefix
per row, and branches that see their row's prefix and themselves (`examples.nano.batching` says why).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

# The start of a copying circuit. Values tried on keys and values with up to six tokens between them.
_BACKS = 3
_WRITE = 0.14  # of what stood before, beside an embedding of 0.07
_GAIN = 1.2
_OUT = 0.4


@dataclass(frozen=True, slots=True)
class Shape:
    """Sizes of the model. `hidden` is `heads` times the head size."""

    vocab: int = 3072
    hidden: int = 256
    layers: int = 6
    heads: int = 4
    inner: int = 512
    theta: float = 1e6
    eps: float = 1e-6

    @property
    def head(self) -> int:
        """Size of one head."""
        return self.hidden // self.heads


@dataclass(frozen=True, slots=True)
class Rows:
    """Where tokens stand: `prefixes` [B, P] with true lengths, then `branches` [B, N, L] after them.

    With P = 0 every branch is a plain causal sequence. `ids` [B*P + B*N*L] is the flat list.
    """

    ids: Tensor
    lengths: Tensor
    """[B] true lengths of the prefixes."""
    prefix: int
    branches: int
    branch: int

    def positions(self) -> Tensor:
        """Return [B*P + B*N*L] position ids; a branch goes on where its prefix ends."""
        rows = self.lengths.shape[0]
        prefix = torch.arange(self.prefix).expand(rows, -1)
        branch = self.lengths[:, None, None] + torch.arange(self.branch).expand(rows, self.branches, -1)
        return torch.cat([prefix.reshape(-1), branch.reshape(-1)])

    def mask(self) -> Tensor:
        """Return [B, 1, N, L, P + L]: 0 where a token of a branch may look, else a large negative number."""
        shape = (self.lengths.shape[0], 1, self.branches, self.branch, -1)
        seen = (torch.arange(self.prefix) < self.lengths[:, None])[:, None, None, None, :].expand(shape)
        own = torch.ones(self.branch, self.branch, dtype=torch.bool).tril().expand(shape)
        allowed = torch.cat([seen, own], dim=-1)
        return torch.zeros(allowed.shape).masked_fill(~allowed, -1e9)


class _Attention(nn.Module):
    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.heads = shape.heads
        self.q_proj = nn.Linear(shape.hidden, shape.hidden)
        self.k_proj = nn.Linear(shape.hidden, shape.hidden)
        self.v_proj = nn.Linear(shape.hidden, shape.hidden)
        self.o_proj = nn.Linear(shape.hidden, shape.hidden, bias=False)

    def forward(self, x: Tensor, turn: tuple[Tensor, Tensor], mask: Tensor, rows: Rows) -> Tensor:
        cos, sin = turn
        count, cut = rows.lengths.shape[0], rows.lengths.shape[0] * rows.prefix
        split = (x.shape[0], self.heads, -1)
        v = self.v_proj(x).view(split)
        q = _rotate(self.q_proj(x).view(split), cos, sin).to(v.dtype)
        k = _rotate(self.k_proj(x).view(split), cos, sin).to(v.dtype)
        scale = 1.0 / math.sqrt(v.shape[-1])
        # [tokens, heads, head] -> [rows, heads, branches, tokens, head]
        qb, kb, vb = (
            t[cut:].view(count, rows.branches, rows.branch, self.heads, -1).permute(0, 3, 1, 2, 4) for t in (q, k, v)
        )
        near = qb @ kb.transpose(-1, -2)
        if not rows.prefix:
            seen = (near.float() * scale + mask).softmax(-1).to(v.dtype) @ vb
            out: Tensor = self.o_proj(seen.permute(0, 2, 3, 1, 4).reshape(x.shape[0], -1))
            return out
        qp, kp, vp = (t[:cut].view(count, rows.prefix, self.heads, -1).transpose(1, 2) for t in (q, k, v))
        first = F.scaled_dot_product_attention(qp, kp, vp, is_causal=True).transpose(1, 2)
        # All branches of a row ask its prefix at once: one matrix product in place of copies of the keys.
        far = (qb.flatten(2, 3) @ kp.transpose(-1, -2)).view(*near.shape[:-1], rows.prefix)
        score = (torch.cat([far, near], dim=-1).float() * scale + mask).softmax(-1).to(v.dtype)
        to_far, to_near = score.split([rows.prefix, rows.branch], dim=-1)  # type: ignore[no-untyped-call]
        seen = (to_far.flatten(2, 3) @ vp).view(qb.shape) + to_near @ vb
        flat = [first.reshape(cut, -1), seen.permute(0, 2, 3, 1, 4).reshape(x.shape[0] - cut, -1)]
        out = self.o_proj(torch.cat(flat))
        return out


class _Mlp(nn.Module):
    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(shape.hidden, shape.inner, bias=False)
        self.up_proj = nn.Linear(shape.hidden, shape.inner, bias=False)
        self.down_proj = nn.Linear(shape.inner, shape.hidden, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))
        return out


class _Layer(nn.Module):
    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.input_layernorm = nn.RMSNorm(shape.hidden, eps=shape.eps)
        self.self_attn = _Attention(shape)
        self.post_attention_layernorm = nn.RMSNorm(shape.hidden, eps=shape.eps)
        self.mlp = _Mlp(shape)

    def forward(self, x: Tensor, turn: tuple[Tensor, Tensor], mask: Tensor, rows: Rows) -> Tensor:
        x = x + self.self_attn(self.input_layernorm(x), turn, mask, rows)
        out: Tensor = x + self.mlp(self.post_attention_layernorm(x))
        return out


class _Body(nn.Module):
    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(shape.vocab, shape.hidden)
        self.layers = nn.ModuleList(_Layer(shape) for _ in range(shape.layers))
        self.norm = nn.RMSNorm(shape.hidden, eps=shape.eps)


class Qwen2(nn.Module):
    """Qwen2 with tied embeddings. `state_dict` has the names of Hugging Face's Qwen2ForCausalLM."""

    def __init__(self, shape: Shape, seed: int = 0) -> None:
        super().__init__()
        self.shape = shape
        self.model = _Body(shape)
        rate = shape.theta ** (-torch.arange(0, shape.head, 2) / shape.head)
        self.register_buffer("rate", rate, persistent=False)
        self._start(torch.Generator().manual_seed(seed))

    def forward(self, rows: Rows) -> Tensor:
        """Return [tokens, hidden], the normalised last states of the flat list."""
        angle = rows.positions()[:, None].float() * self.get_buffer("rate")
        angle = torch.cat([angle, angle], dim=-1)[:, None, :]
        turn = (angle.cos(), angle.sin())
        mask = rows.mask()
        x: Tensor = self.model.embed_tokens(rows.ids)
        for layer in self.model.layers:
            x = layer(x, turn, mask, rows)
        out: Tensor = self.model.norm(x)
        return out

    def logits(self, states: Tensor) -> Tensor:
        """Return [n, vocab] for [n, hidden]."""
        return F.linear(states, self.model.embed_tokens.weight)

    @torch.no_grad()
    def _start(self, generator: torch.Generator) -> None:
        for name, weight in self.named_parameters():
            if weight.dim() == 2:
                deep = name.endswith(("o_proj.weight", "down_proj.weight"))
                std = 0.05 / math.sqrt(weight.shape[1]) if deep else 1.0 / math.sqrt(weight.shape[1])
                weight.normal_(0.0, 0.05 if "embed" in name else std, generator=generator)
            elif name.endswith("bias"):
                weight.zero_()
        heads = [layer.self_attn for layer in self.model.modules() if isinstance(layer, _Layer)]
        start_copying(self.model.embed_tokens.weight, heads, self.get_buffer("rate"), generator)


def start_copying(embedding: Tensor, layers: Sequence[_Attention], rate: Tensor, generator: torch.Generator) -> None:
    """Write the start of a copying circuit into the embedding and the first three layers.

    Copying is made of two kinds of heads (induction, arXiv 2209.11895): one tells each token what
    stood before it, another finds where the same tokens stood before and repeats what came next.
    Training from noise spends most of its time to find them. Rotary positions with query and key
    biases can say "look back by n"; slow rotary dimensions can match contents at any distance.

    Heads of the first layer look back by one, two and three tokens. A head of the second looks back by
    three at what those found, so that six tokens are known in the third: sentences of one wording differ
    in their keys alone, and a key may stand five tokens before its value. With two layers three are known.

    Half of the hidden dimensions begin as the token's own, the others as blocks for the tokens before it,
    so that neither reads the other.
    """
    hidden, half = embedding.shape[1], rate.shape[0]
    basis = _orthogonal(hidden, generator)
    own = basis[:, : hidden // 2]
    embedding.copy_(math.sqrt(2.0) * embedding[:, : hidden // 2] @ own.T)
    blocks = [basis[:, hidden // 2 + i * half : hidden // 2 + (i + 1) * half].T for i in range(layers[0].heads)]
    backs = min(_BACKS, len(blocks))
    far = len(layers) > 2 and len(blocks) > backs
    view = _orthogonal(hidden // 2, generator)[:half] @ own.T
    turn = _orthogonal(half, generator)
    turns = [torch.linalg.matrix_power(turn, power) for power in range(2 * _BACKS + 1)]
    for head in range(backs):
        _look_back(layers[0], head, head + 1, rate=rate, what=view, write=_WRITE * blocks[head].T)
    # Powers of one rotation tell the tokens apart; the query's are one token later than the key's.
    now = turns[0] @ (1.4 * view) + sum(turns[i] @ blocks[i - 1] for i in range(1, backs))
    past = sum(turns[i] @ blocks[i] for i in range(backs))
    if far:
        _look_back(layers[1], 0, backs, rate=rate, what=past, write=_WRITE / math.sqrt(backs) * blocks[backs].T)
        now = now + turns[backs] @ blocks[backs - 1] + turns[backs + 1] @ blocks[backs]
        past = past + turns[backs] @ blocks[backs]
    match = layers[2] if far else layers[1]
    for head in range(match.heads):
        _match(match, head, _GAIN * now, past=past, own=own[:, head * half : (head + 1) * half])


def _look_back(layer: _Attention, head: int, back: int, rate: Tensor, what: Tensor, write: Tensor) -> None:
    half = rate.shape[0]
    local = slice(head * 2 * half, (head + 1) * 2 * half)
    layer.q_proj.weight[local] *= 0.1
    layer.k_proj.weight[local] *= 0.1
    # A key seen `back` tokens ago is turned by -back * rate; the query waits at that angle.
    layer.k_proj.bias[local] = torch.cat([torch.full((half,), 9.0), torch.zeros(half)])
    layer.q_proj.bias[local] = 9.0 * torch.cat([(rate * back).cos(), -(rate * back).sin()])
    layer.v_proj.weight[local][:half] = what
    layer.o_proj.weight[:, local][:, :half] = write


def _match(layer: _Attention, head: int, now: Tensor, past: Tensor, own: Tensor) -> None:
    half = now.shape[0]
    start, quarter = head * 2 * half, half // 2
    # The slow half of the rotary dimensions: rows half/2 to half, and those that they are paired with.
    for part, rows in enumerate((slice(0, quarter), slice(quarter, half))):
        slow = slice(start + part * half + quarter, start + (part + 1) * half)
        fast = slice(start + part * half, start + part * half + quarter)
        layer.q_proj.weight[slow], layer.k_proj.weight[slow] = now[rows], past[rows]
        layer.q_proj.weight[fast] *= 0.1
        layer.k_proj.weight[fast] *= 0.1
    local = slice(start, start + half)
    layer.v_proj.weight[local] = own.T
    layer.o_proj.weight[:, local] = _OUT * own


def _orthogonal(size: int, generator: torch.Generator) -> Tensor:
    q: Tensor = torch.linalg.qr(torch.randn(size, size, generator=generator))[0]
    return q


def _rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    left, right = x.chunk(2, dim=-1)
    return x * cos + torch.cat([-right, left], dim=-1) * sin
