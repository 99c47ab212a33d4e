"""Which inputs of a condition to measure next, in the user's units."""

import dataclasses
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
import pandas as pd

from lvmogp.conditions.condition import all_particles
from lvmogp.conditions.curves import Particles
from lvmogp.conditions.expected_variance import empty_plan, expected_variance, with_measurement
from lvmogp.conditions.search import unit_nodes
from lvmogp.errors import DataError
from lvmogp.fitted.model import FittedModel, find_condition
from lvmogp.ground.padding import doubled, in_blocks
from lvmogp.tables.ids import Id
from lvmogp.typing import HostFloat

GOALS = ("predictions", "latents")
# Outcomes that are imagined of each candidate in all, and scenarios of what was decided on before it.
N_OUTCOMES, _N_SCENARIOS = 64, 16
MOST_REGION_POINTS = 64
_CANDIDATES_AT_ONCE = 16
_N_DEFAULT = 64
_TINY = float(np.finfo(float).tiny)


class Suggestion(NamedTuple):
    """Inputs to measure, in order, with what each is expected to bring.

    ``sd_before`` is the standard deviation of what is to be known, before any of them: of the curve over the region
    (root mean square, without the noise of observations), or of the latents. ``sd_after`` is what is expected of it
    after each measurement and all before it; ``candidate_sd`` after a first measurement at each of the candidates. For
    a model of a transform of the output these are standard deviations of that transform.
    """

    condition: Id
    goal: str
    n_measured: int
    inputs: HostFloat
    sd_before: float
    sd_after: HostFloat
    candidates: HostFloat
    candidate_sd: HostFloat
    columns: tuple[str, ...]
    date_columns: tuple[str, ...]

    @property
    def table(self) -> pd.DataFrame:
        """One row a measurement in the order of choice: its inputs, and the standard deviation expected after it."""
        values: dict[str, Any] = {
            name: pd.to_datetime(column, unit="D") if name in self.date_columns else column
            for name, column in zip(self.columns, self.inputs.T, strict=True)
        }
        return pd.DataFrame({**values, "sd_after": self.sd_after}, index=pd.RangeIndex(1, len(self.inputs) + 1))


def default_candidates(model: FittedModel) -> HostFloat:
    """Inputs that cover the box of the training inputs: evenly spaced, or quasi-random in several columns.

    Where logarithms of a column are modelled, these are evenly spaced.
    """
    if model.observations is None:
        raise DataError(
            "the model has not kept its training data, so candidates must be given: the inputs to choose from"
        )
    scaling, own = model.scaling, model.scaling.transformed_inputs(model.observations.inputs)
    low, high = own.min(axis=0), own.max(axis=0)
    if model.schema.n_columns == 1:
        return scaling.restored_inputs(np.linspace(float(low[0]), float(high[0]), _N_DEFAULT)[:, None])
    return scaling.restored_inputs(low + (high - low) * unit_nodes(4 * _N_DEFAULT, model.schema.n_columns))


def suggest(
    model: FittedModel, name: Id, candidates: HostFloat, *, n: int, goal: str, region: HostFloat | None
) -> Suggestion:
    """Choose ``n`` of the candidates one after the other, each the best given those before it."""
    scaling, found = model.scaling, all_particles(model.ensemble, find_condition(model, name, unseen="prior"))
    particles = dataclasses.replace(found, aligned=found.aligned[:, : model.n_latent])  # of coordinates, the latents
    counts = [*model.schema.counts.tolist(), *(len(entry.outputs) for entry in model.added.values())]
    wanted = _thinned(candidates if region is None else region)
    targets = jnp.asarray(scaling.inputs(wanted), particles.noise.dtype) if goal == "predictions" else None
    places, before, after, after_each = _chosen(particles, scaling.inputs(candidates), targets, n)
    unit = scaling.output_scale if goal == "predictions" else 1.0
    return Suggestion(
        condition=name,
        goal=goal,
        n_measured=dict(zip(model.all_ids, counts, strict=True)).get(name, 0),
        inputs=candidates[places],
        sd_before=unit * float(np.sqrt(before)),
        sd_after=unit * np.sqrt(after),
        candidates=candidates,
        candidate_sd=unit * np.sqrt(after_each),
        columns=model.schema.input_names,
        date_columns=model.schema.date_columns,
    )


def _chosen(
    particles: Particles, candidates: HostFloat, targets: Any, n: int
) -> tuple[list[int], float, HostFloat, HostFloat]:
    # Places among the candidates; variances before, after each choice, and after each candidate as the first choice.
    n_scenarios = 1 if n == 1 else _N_SCENARIOS
    dtype, n_columns = particles.log_weights.dtype, candidates.shape[1]
    nodes = jnp.asarray(unit_nodes(N_OUTCOMES, 2).reshape(n_scenarios, -1, 2), dtype)
    imagined = unit_nodes(n_scenarios, 2 * n).reshape(n_scenarios, n, 2)
    # As many places for measurements as fit into the same compiled program.
    decided = empty_plan(particles, n_columns=n_columns, n_places=doubled(n), n_scenarios=n_scenarios)
    blocks = jnp.asarray(in_blocks(candidates, _CANDIDATES_AT_ONCE), dtype)
    places: list[int] = []
    before = 0.0
    shares_of_all: list[HostFloat] = []
    for number in range(n):
        expected = expected_variance(particles, decided, targets, blocks, nodes)
        left, after = max(float(expected.now), _TINY), np.asarray(expected.after, dtype=float)
        before = before or left
        # What each candidate leaves of the variance; by quadrature a little more than all where it tells nothing.
        shares = np.minimum(after.reshape(-1)[: len(candidates)] / left, 1.0)
        shares_of_all.append(shares)
        best = int(np.argmin(np.where(np.isin(np.arange(len(candidates)), places), np.inf, shares)))
        places.append(best)
        if len(places) < n:
            point, node = jnp.asarray(candidates[best], dtype), jnp.asarray(imagined[:, number], dtype)
            decided = with_measurement(particles, decided, jnp.asarray(number), point, node)
    # Shares are multiplied, since scenarios differ from step to step.
    after = before * np.cumprod([shares[place] for shares, place in zip(shares_of_all, places, strict=True)])
    return places, before, after, before * shares_of_all[0]


def _thinned(points: HostFloat) -> HostFloat:
    # A region is an average; more points than these change nothing.
    return points[np.sort(np.random.default_rng(0).permutation(len(points))[:MOST_REGION_POINTS])]
