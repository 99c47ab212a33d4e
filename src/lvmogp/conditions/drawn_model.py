"""Posterior draws together with the data that the process is conditioned on given each of them."""

from collections.abc import Iterator

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from lvmogp.ground.compiling import compiled
from lvmogp.ground.padding import rounded_up
from lvmogp.model.draws import Draws, at_places, chosen_places, rotations
from lvmogp.model.layouts import GridData, LikelihoodData, LongData, ScatteredData, likelihood_data
from lvmogp.model.parameters import Parameters
from lvmogp.model.process import Conditional, stacked_conditionals
from lvmogp.typing import Array, Float, HostFloat, HostInt

# Half a gigabyte of them in double precision.
_MOST_KEPT_ELEMENTS = 2**26
# Answers cost in proportion to the draws that they come from. The error of a mean is at most a sixteenth of the spread
# of one draw; tails ask for more, which are taken where their factors stay within 128 megabytes.
_FEWEST_ANSWERING, _MOST_ANSWERING, _ELEMENTS_ANSWERING = 256, 512, 2**24
_stacked = compiled(stacked_conditionals)


class DrawnModel(eqx.Module):
    """Draws in double precision, the data, and the conditionals of all draws where they are not too large to keep.

    ``rotations`` turn the latents of each draw into aligned coordinates, those of the variational fit. ``places`` are
    those of the draws among all that there were.
    """

    draws: Draws
    data: LikelihoodData
    rotations: Float[Array, "S Q_H Q_H"]
    kept: Conditional | None
    places: HostInt

    @property
    def n_draws(self) -> int:
        """S."""
        return self.draws.n_draws

    @property
    def weights(self) -> HostFloat:
        """Weight of each draw, adding up to one."""
        return np.exp(np.asarray(self.draws.log_weight, dtype=float))

    @property
    def noise(self) -> Float[Array, "S D"]:
        """σ_d² of every condition in every draw."""
        return jnp.broadcast_to(self.draws.noise_variance, self.draws.latents.shape[:2])

    @property
    def aligned(self) -> Float[Array, "S D Q_H"]:
        """Latents of the conditions in aligned coordinates."""
        return self.draws.latents @ self.rotations


def drawn_model(draws: Draws, data: GridData | LongData, start: Parameters) -> DrawnModel:
    """Draws with the observations that they were given, in standardised units; ``start`` is the variational fit.

    Of many draws there are as many as can answer in little time. Everything is in double precision: variances are small
    differences of large numbers.
    """
    conditioned = jax.tree.map(_in_double_precision, likelihood_data(data, start))
    n_answering = np.clip(_ELEMENTS_ANSWERING // _elements(conditioned), _FEWEST_ANSWERING, _MOST_ANSWERING)
    places = chosen_places(draws, int(n_answering))
    draws = jax.tree.map(_in_double_precision, at_places(draws, places))
    size = _elements(conditioned) * draws.n_draws
    kept = _stacked(draws, conditioned) if size <= _MOST_KEPT_ELEMENTS else None
    return DrawnModel(draws, conditioned, rotations(draws, jnp.asarray(start.latent_mean, jnp.float64)), kept, places)


def _in_double_precision(leaf: Array) -> Array:
    return leaf.astype(jnp.float64) if jnp.issubdtype(leaf.dtype, jnp.floating) else leaf


def _elements(data: LikelihoodData) -> int:
    # Numbers in the factors of one draw.
    if isinstance(data, GridData):
        n_inputs, n_conditions = data.outputs.shape
        return (n_inputs + n_conditions) ** 2
    if isinstance(data, ScatteredData):
        return len(data.outputs) ** 2
    return (len(data.inducing_inputs) * len(data.inducing_conditions)) ** 2


def most_at_once(model: DrawnModel) -> int:
    """Draws whose conditionals are not too large to keep together."""
    return max(_MOST_KEPT_ELEMENTS // _elements(model.data), 1)


def conditionals_with(model: DrawnModel, draw: HostInt) -> tuple[Conditional, HostInt]:
    """Conditionals among which are those of some draws, and the place of each of these."""
    if model.kept is not None:
        return model.kept, draw
    numbers, places = np.unique(draw, return_inverse=True)
    # Few different numbers of draws share few compiled programs.
    return _conditionals_of(model, np.resize(numbers, rounded_up(len(numbers)))), places


def _conditionals_of(model: DrawnModel, numbers: HostInt) -> Conditional:
    return _stacked(jax.tree.map(lambda leaf: leaf[numbers], model.draws), model.data)


def chunks(model: DrawnModel) -> Iterator[tuple[HostInt, Conditional]]:
    """Numbers of some draws with their conditionals: all at once where kept, else as many as fit into memory."""
    everything = np.arange(model.n_draws)
    if model.kept is not None:
        yield everything, model.kept
        return
    n_chunks = -(-_elements(model.data) * model.n_draws // _MOST_KEPT_ELEMENTS)
    for some in np.array_split(everything, min(n_chunks, model.n_draws)):
        yield some, _conditionals_of(model, some)
