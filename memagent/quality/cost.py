"""What reading costs: tokens, engine time and money, and a budget in one of them."""

import re
from dataclasses import astuple, dataclass
from operator import add
from typing import Literal, Self

from pydantic import Field, field_validator, model_validator

from memagent.settings import Section

_AMOUNT = re.compile(r"(\d+(?:\.\d+)?)\s*([A-Za-z]+)")
_SECONDS = {"s": 1.0, "min": 60.0, "h": 3600.0}
_TOKENS = {"tok": 1.0, "ktok": 1e3, "Mtok": 1e6, "Gtok": 1e9}
_MILLION = 1e6
Measure = Literal["engine time", "tokens", "money"]


class CostConfig(Section):
    """Prices, and what a run may spend. Without a price, costs are tokens and engine time."""

    currency: str = Field("EUR", pattern=r"^[A-Z]{3}$")
    """Of the prices: three capital letters."""
    engine_hour: float = Field(0.0, ge=0)
    """Price of an hour for which one engine of the pool is up."""
    input_mtok: float = Field(0.0, ge=0)
    """Price of a million prompt tokens that are not in the prefix cache."""
    cached_mtok: float | None = Field(None, ge=0)
    """Price of a million prompt tokens from the prefix cache; by default that of the others."""
    output_mtok: float = Field(0.0, ge=0)
    """Price of a million tokens that the model writes."""
    budget: str = ""
    """What one run of `ask`, `digest` or `backfill` may spend: engine time (``90min``, ``2h``), tokens (``800ktok``,
    ``5Mtok``; prompt and response) or money (``12.50EUR``, which needs a price). The run then ends cleanly, and the
    same command reads the rest. Empty: no limit."""

    @field_validator("budget")
    @classmethod
    def _amount(cls, budget: str) -> str:
        if budget:
            _parsed(budget)
        return budget

    @model_validator(mode="after")
    def _priced(self) -> Self:
        budget = self.limit
        if budget is None or budget.measure != "money":
            return self
        if budget.unit != self.currency:
            raise ValueError(f"cost.budget = {self.budget!r} is not in cost.currency, which is {self.currency}")
        if not self.has_price:
            raise ValueError(
                f"cost.budget = {self.budget!r} is money, and no price is set: give cost.engine_hour, or "
                "cost.input_mtok and cost.output_mtok, or a budget such as 2h or 5Mtok"
            )
        return self

    @property
    def has_price(self) -> bool:
        """Whether anything has a price."""
        return any((self.engine_hour, self.input_mtok, self.cached_mtok, self.output_mtok))

    @property
    def limit(self) -> "Budget | None":
        """The budget; None: there is none."""
        return _parsed(self.budget) if self.budget else None

    def money(self, usage: "Usage") -> float:
        """Return what usage costs, in `currency`."""
        cached = self.input_mtok if self.cached_mtok is None else self.cached_mtok
        tokens = (usage.prompt_tokens - usage.cached_tokens) * self.input_mtok
        tokens += usage.cached_tokens * cached + usage.output_tokens * self.output_mtok
        return usage.engine_seconds / _SECONDS["h"] * self.engine_hour + tokens / _MILLION


@dataclass(frozen=True, slots=True)
class Usage:
    """What reading took."""

    prompt_tokens: int = 0
    """Tokens that the model was given, `cached_tokens` among them."""
    cached_tokens: int = 0
    """Those that came from the engines' prefix caches."""
    output_tokens: int = 0
    engine_seconds: float = 0.0
    """Sum over the engines."""

    def __add__(self, other: "Usage") -> "Usage":
        """Add usage."""
        return Usage(*map(add, astuple(self), astuple(other)))

    def less(self, other: "Usage") -> "Usage":
        """Return what is left of it without `other`, at least nothing."""
        return Usage(*(max(0, mine - theirs) for mine, theirs in zip(astuple(self), astuple(other), strict=True)))


@dataclass(frozen=True, slots=True)
class Budget:
    """What a run may spend."""

    amount: float
    """In seconds, tokens or units of the currency."""
    measure: Measure
    unit: str
    """As it was given."""

    def is_spent(self, usage: Usage, prices: CostConfig) -> bool:
        """Tell whether usage has reached it."""
        if self.measure == "engine time":
            return usage.engine_seconds >= self.amount
        if self.measure == "tokens":
            return usage.prompt_tokens + usage.output_tokens >= self.amount
        return prices.money(usage) >= self.amount


def _parsed(text: str) -> Budget:
    match = _AMOUNT.fullmatch(text.strip())
    number, unit = (float(match[1]), match[2]) if match else (0.0, "")
    if unit in _SECONDS and number:
        return Budget(number * _SECONDS[unit], "engine time", unit)
    if unit in _TOKENS and number:
        return Budget(number * _TOKENS[unit], "tokens", unit)
    if number and re.fullmatch("[A-Z]{3}", unit):
        return Budget(number, "money", unit)
    units = ", ".join((*_SECONDS, *_TOKENS))
    raise ValueError(f"a budget is a number above 0 and its unit, one of {units} or a currency, as in 2h, not {text!r}")
