"""Fit many hostile data sets and write down what was found: ``make test-hostile``."""

import argparse
import itertools
import json
import os
import platform
import sys
import time
from collections import Counter
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context
from pathlib import Path
from typing import Any, NamedTuple

# Many programs, each for little work: made quickly rather than to be quick.
os.environ.setdefault("XLA_FLAGS", "--xla_backend_optimization_level=0")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(Path(__file__).parent.parent / ".pytest_cache" / "compiled"))
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0.3")
os.environ["JAX_ENABLE_X64"] = "1"

import jax
import numpy as np
from hostile_checks import ANEW, FITTED, Account, Finding, examined
from hostile_sets import LAYOUTS, Recipe, recipes
from hypothesis import HealthCheck, Phase, given, settings
from trust_page import ROOT, write_pages

import lvmogp

_LISTED = 200
_AT_ONCE = 10


def drawn(count: int) -> list[Recipe]:
    """So many recipes, the same in every run."""
    found: list[Recipe] = []

    @settings(
        max_examples=count,
        derandomize=True,
        database=None,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(recipe=recipes())
    def draw(recipe: Recipe) -> None:
        found.append(recipe)

    draw()
    return found


class Examined(NamedTuple):
    """What became of one data set, as it is kept from run to run."""

    recipe: Recipe
    dtype: str
    account: Account

    def to_json(self) -> str:
        """One line of a file."""
        account = self.account._asdict() | {"findings": [each._asdict() for each in self.account.findings]}
        return json.dumps({"recipe": self.recipe._asdict(), "dtype": self.dtype, "account": account}, default=float)

    @classmethod
    def from_json(cls, line: str) -> "Examined":
        """What such a line says."""
        found = json.loads(line)
        account = found["account"]
        findings = tuple(Finding(**each) for each in account["findings"])
        kept = Account(account["refusal"], findings, account["moved"])
        return cls(Recipe(**found["recipe"]), found["dtype"], kept)


class Tally:
    """What was found so far."""

    def __init__(self, asked: int):
        self.asked, self.began = asked, time.time()
        self.refusals, self.broken = Counter[str](), Counter[str]()
        self.moved: dict[str, list[float]] = {}
        self.findings: list[dict[str, Any]] = []
        self.tried = self.tried_before = 0

    def add(self, recipe: Recipe, dtype: str, account: Account) -> None:
        """Count one data set."""
        self.tried += 1
        if account.refusal is not None:
            self.refusals[account.refusal[:90]] += 1
        for rule, distance in account.moved.items():
            self.moved.setdefault(rule, []).append(distance)
        for finding in account.findings:
            self.broken[finding.rule] += 1
            self.findings.append({"rule": finding.rule, "text": finding.text[:300], "dtype": dtype, **recipe._asdict()})

    @property
    def moved_in_too_many(self) -> list[str]:
        """Rules about answers after a fit that fewer than 99 % of the data sets keep."""
        fitted = {rule: np.asarray(values) for rule, values in self.moved.items() if rule.endswith(ANEW)}
        return [rule for rule, values in fitted.items() if np.mean(values <= FITTED) < 0.99]

    def line(self) -> str:
        """Progress in one line."""
        seconds = time.time() - self.began
        left = seconds / (self.tried - self.tried_before) * (self.asked - self.tried)
        broken = sum(self.broken.values())
        return f"{self.tried}/{self.asked}, {broken} findings, {seconds / 60:.0f} min, {left / 60:.0f} min left"

    def as_dict(self) -> dict[str, Any]:
        """The account as JSON."""
        return {
            "lvmogp": lvmogp.__version__,
            "machine": f"{platform.machine()}, {os.cpu_count()} cores",
            "data_sets": self.tried,
            "asked_for": self.asked,
            "layouts": len(LAYOUTS),
            "answered": self.tried - sum(self.refusals.values()),
            "refused_in_words": dict(self.refusals.most_common()),
            "findings_by_rule": dict(self.broken.most_common()),
            "moved": {rule: quantiles(values) for rule, values in sorted(self.moved.items())},
            "moved_in_too_many": self.moved_in_too_many,
            "findings": self.findings[:_LISTED],
        }


def quantiles(values: list[float]) -> dict[str, float]:
    """How far answers moved, in standard deviations of the output."""
    found = np.asarray(values)
    levels = {"median": 0.5, "99 %": 0.99, "largest": 1.0}
    within = float(np.mean(found <= FITTED))
    return {"checked": len(values), "within a hundredth": within} | {
        name: float(np.quantile(found, level)) for name, level in levels.items()
    }


def batches(chosen: list[Recipe]) -> list[list[Recipe]]:
    """Recipes of one layout, a few at a time."""
    found = []
    for _, group in itertools.groupby(chosen, key=lambda recipe: recipe.layout):
        listed = list(group)
        found += [listed[start : start + _AT_ONCE] for start in range(0, len(listed), _AT_ONCE)]
    return found


def accounts(batch: list[Recipe]) -> list[Examined]:
    """What became of each data set."""
    jax.clear_caches()  # a process may hold so many programs only; those on disk are quick to read
    return [Examined(recipe, dtype_of(recipe), examined(recipe, dtype=dtype_of(recipe))) for recipe in batch]


def dtype_of(recipe: Recipe) -> str:
    """Single precision for every fifth data set."""
    return "float32" if recipe.seed % 5 == 0 else "float64"


def asked() -> argparse.Namespace:
    """What the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=1000, help="data sets to draw")
    parser.add_argument(
        "--layouts", type=int, nargs="*", help="numbers of the layouts to keep, in the order to run them"
    )
    parser.add_argument("--processes", type=int, default=os.cpu_count())
    parser.add_argument("--out", type=Path, default=Path("results/hostile.json"))
    parser.add_argument("--kept", type=Path, default=Path("out/hostile.jsonl"), help="what became of each data set")
    parser.add_argument("--resume", action="store_true", help="leave out the data sets that are kept already")
    return parser.parse_args()


def chosen_recipes(count: int, layouts: list[int] | None) -> list[Recipe]:
    """The data sets, those of one layout together."""
    order = layouts or list(range(len(LAYOUTS)))
    chosen = [recipe for recipe in drawn(count) if recipe.layout in order]
    return sorted(chosen, key=lambda recipe: order.index(recipe.layout))


def already_kept(path: Path, chosen: list[Recipe]) -> list[Examined]:
    """What became of those data sets that an earlier run got to."""
    known = {(each.recipe, each.dtype): each for each in map(Examined.from_json, path.open())}
    return [known[key] for key in ((recipe, dtype_of(recipe)) for recipe in chosen) if key in known]


def examine(pending: list[Recipe], tally: Tally, arguments: argparse.Namespace) -> None:
    """Add what becomes of each data set to the tally, keep it, and show progress."""
    pool = ProcessPoolExecutor(arguments.processes, mp_context=get_context("spawn"))
    with arguments.kept.open("a") as lines, pool:
        for batch in as_completed([pool.submit(accounts, batch) for batch in batches(pending)]):
            for found in batch.result():
                tally.add(*found)
                lines.write(found.to_json() + "\n")
            lines.flush()
            print(f"\r{tally.line()}   ", end="", file=sys.stderr, flush=True)
            arguments.out.write_text(json.dumps(tally.as_dict(), indent=1, default=float) + "\n")


def main() -> int:
    """Run and write the account; fails if anything was found."""
    arguments = asked()
    chosen = chosen_recipes(arguments.count, arguments.layouts)
    arguments.kept.parent.mkdir(parents=True, exist_ok=True)
    if not arguments.resume or not arguments.kept.exists():
        arguments.kept.write_text("")
    kept = already_kept(arguments.kept, chosen)
    tally = Tally(len(chosen))
    for each in kept:
        tally.add(*each)
    tally.tried_before = tally.tried
    done = {each.recipe for each in kept}
    examine([recipe for recipe in chosen if recipe not in done], tally, arguments)
    if arguments.out.resolve() == (ROOT / "results" / "hostile.json"):
        write_pages()
    print(f"\n{json.dumps(tally.as_dict()['findings_by_rule'], indent=1)}")
    return 1 if tally.broken or tally.moved_in_too_many else 0


if __name__ == "__main__":
    sys.exit(main())
