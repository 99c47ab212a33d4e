"""All processes that answer: one for a variational fit, many for posterior draws, with weights.

A fit is an ensemble of one process in which the latents of the trained conditions are Gaussian. Draws are an ensemble
of many, in each of which the latents are known.
"""

from collections.abc import Iterator
from typing import TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from lvmogp.ground.compiling import compiled
from lvmogp.ground.precision import in_precision
from lvmogp.model.draws import Draws
from lvmogp.model.expected_likelihood import OwnCurves
from lvmogp.model.layouts import Data, GridData, LikelihoodData, ScatteredData, likelihood_data
from lvmogp.model.parameters import Parameters
from lvmogp.model.posterior import CurveMoments, Posterior, curve_moments
from lvmogp.model.process import Process, own_of_fit, process_of_fit, processes_of_draws
from lvmogp.typing import Array, Float, HostFloat, HostInt, Scalar

# Factors that are kept, or worked through, at a time: half a gigabyte of them in double precision.
_MOST_KEPT_ELEMENTS = 2**26
# Answers cost in proportion to the draws that they come from. The error of a mean is at most a sixteenth of the spread
# of one draw; tails ask for more, which are taken where their factors stay within 128 megabytes.
_FEWEST_ANSWERING, _MOST_ANSWERING, _ELEMENTS_ANSWERING = 256, 512, 2**24
_Tree = TypeVar("_Tree")
_processes_of_draws = compiled(processes_of_draws)


class NoisePrior(eqx.Module):
    """log σ² of a new condition under each process: N(mean, deviation²); ``shared`` where all conditions have one.

    log ρ², by which the variance of its own curve differs, is N(0, own_deviation²), or else follows the noise.
    """

    mean: Float[Array, "*S"]
    deviation: Float[Array, "*S"]
    own_deviation: Float[Array, "*S"] | None
    shared: bool = eqx.field(static=True)

    @property
    def n_unknown(self) -> int:
        """Return how many numbers of a new condition are not known: of noise, and of its own curve."""
        return 0 if self.shared else 1 if self.own_deviation is None else 2

    def at(self, deviations: Float[Array, " unknown"]) -> tuple[Float[Array, ""], Float[Array, ""]]:
        """Return σ² and ρ² so many deviations from their medians."""
        if self.shared:
            return jnp.exp(self.mean), jnp.ones_like(self.mean)
        relative = jnp.exp(self.deviation * deviations[0])
        own = relative if self.own_deviation is None else jnp.exp(self.own_deviation * deviations[1])
        return jnp.exp(self.mean) * relative, own


class Source(eqx.Module):
    """What the processes of draws are made from, where they are too many to be kept."""

    draws: Draws
    data: LikelihoodData


class ClosedForm(eqx.Module):
    """A fit whose latents are Gaussian: q(v) and q(H), with the curve moments of the trained conditions.

    These are kept where they are not too many, and made when asked for where they are. ``own`` is what the data say of
    the curves that are conditions' own, where they have such curves.
    """

    posterior: Posterior
    curves: CurveMoments | None
    own: OwnCurves | None


class Ensemble(eqx.Module):
    """S weighted processes, with latents, noise and scale of the own curve that the trained conditions have in each.

    Noise variances are means where they are uncertain; ``noise_deviation`` are then standard deviations of their
    logarithms, else zero.
    ``rotations`` turn the latents of each process into aligned coordinates, those of the variational fit. ``fit`` is
    there where the latents of trained conditions are Gaussian, so that answers have closed forms.
    """

    log_weights: Float[Array, " S"]
    rotations: Float[Array, "S Q_H Q_H"]
    latents: Float[Array, "S D Q_H"]
    noise: Float[Array, "S D"]
    noise_deviation: Float[Array, "S D"]
    own: Float[Array, "S D"]
    noise_prior: NoisePrior
    processes: Process | None
    source: Source | None
    fit: ClosedForm | None
    n_columns: int = eqx.field(static=True)

    @property
    def n_processes(self) -> int:
        """Return S."""
        return self.log_weights.shape[0]

    @property
    def weights(self) -> HostFloat:
        """Return the weight of each process, adding up to one."""
        return np.exp(np.asarray(self.log_weights, dtype=float))

    @property
    def dtype(self) -> str:
        """Return the precision in which the ensemble answers."""
        return str(self.latents.dtype)


def ensemble_of_fit(model: Posterior, data: Data | None = None) -> Ensemble:
    """Return the ensemble of one process that a variational fit is.

    Curves that are conditions' own follow from the standardised ``data``; without such curves none are needed.
    """
    n_features = sum(model.input_basis.sizes)
    n_elements = len(model.parameters.latent_mean) * n_features**2
    own_data = None if data is None or model.parameters.kernels.own is None else in_precision(data, model.mean.dtype)
    return _ensemble_of_fit(model, own_data, keeps_curves=n_elements <= _MOST_KEPT_ELEMENTS)


@compiled
def _ensemble_of_fit(model: Posterior, data: Data | None, *, keeps_curves: bool) -> Ensemble:
    # One program: each operation outside of it would be a program of its own.
    parameters, own, pooled = model.parameters, own_of_fit(model, data), model.pooled
    log_noise = jnp.log(parameters.noise_per_condition)
    noise_spread = _spread(parameters.noise_spread, log_noise, pooled and pooled.of_median)
    own_spread = None
    if parameters.own_scale is not None:
        log_own = jnp.log(parameters.own_scale)
        own_spread = _spread(parameters.own_spread, log_own, pooled and pooled.of_own_median)
    deviation = jnp.zeros_like(log_noise) if pooled is None else pooled.of_noise
    mean = parameters.latents.mean
    return Ensemble(
        log_weights=jnp.zeros(1, mean.dtype),
        rotations=jnp.eye(mean.shape[1], dtype=mean.dtype)[None],
        latents=mean[None],
        noise=jnp.exp(log_noise + deviation**2 / 2)[None],
        noise_deviation=deviation[None],
        own=parameters.own_per_condition[None],
        noise_prior=NoisePrior(
            jnp.mean(log_noise)[None],
            noise_spread,
            own_spread,
            shared=parameters.noise_variance.shape[0] == 1,
        ),
        processes=jax.tree.map(lambda leaf: leaf[None], process_of_fit(model, own)),
        source=None,
        fit=ClosedForm(model, curve_moments(model, parameters.latents, own) if keeps_curves else None, own),
        n_columns=model.input_basis.points.shape[1],
    )


def _spread(found: Scalar | None, logs: Float[Array, " D"], of_median: Scalar | None) -> Float[Array, " 1"]:
    # That of a new condition is as the fit says, or else as those of the trained ones are spread; and what is not known
    # of their median.
    spread = jnp.std(logs) if found is None else found
    return (spread if of_median is None else jnp.sqrt(spread**2 + of_median**2))[None]


def ensemble_of_draws(draws: Draws, data: Data, start: Parameters) -> Ensemble:
    """Return the ensemble of draws that were given standardised observations; ``start`` is the variational fit.

    Of many draws there are as many as can answer in little time. Everything is in double precision: variances are small
    differences of large numbers.
    """
    conditioned = in_precision(likelihood_data(data, start), "float64")
    draws = in_precision(answering(draws, data, start), "float64")
    size = _elements(conditioned) * draws.n_draws
    return Ensemble(
        log_weights=draws.log_weight,
        rotations=rotations(draws, jnp.asarray(start.latent_mean, jnp.float64)),
        latents=draws.latents,
        noise=draws.noise_per_condition,
        noise_deviation=jnp.zeros_like(draws.noise_per_condition),
        own=draws.own_per_condition,
        noise_prior=_noise_prior(draws),
        processes=_processes_of_draws(draws, conditioned) if size <= _MOST_KEPT_ELEMENTS else None,
        source=Source(draws, conditioned),
        fit=None,
        n_columns=start.inducing_inputs.shape[1],
    )


def answering(draws: Draws, data: Data, start: Parameters) -> Draws:
    """Return as many of the draws as answer."""
    most = np.clip(_ELEMENTS_ANSWERING // _elements(likelihood_data(data, start)), _FEWEST_ANSWERING, _MOST_ANSWERING)
    return thinned(draws, int(most))


def _noise_prior(draws: Draws) -> NoisePrior:
    log_noise, spread = jnp.log(draws.noise_variance), draws.noise_spread
    if spread is None or log_noise.shape[1] == 1:
        return NoisePrior(log_noise[:, 0], jnp.zeros_like(log_noise[:, 0]), None, shared=True)
    return NoisePrior(jnp.log(spread.median), spread.deviation, draws.own_spread, shared=False)


def _elements(data: LikelihoodData) -> int:
    # Numbers in the factors of one draw.
    if isinstance(data, GridData):
        n_inputs, n_conditions = data.outputs.shape
        return (n_inputs + n_conditions) ** 2
    if isinstance(data, ScatteredData):
        return len(data.outputs) ** 2
    return (len(data.inducing_inputs) * len(data.inducing_conditions)) ** 2


def made(ensemble: Ensemble, numbers: HostInt) -> Process:
    """Return processes of some numbers, where they are not kept."""
    assert ensemble.source is not None  # what is not kept can be made
    return _processes_of_draws(jax.tree.map(lambda leaf: leaf[numbers], ensemble.source.draws), ensemble.source.data)


def most_at_once(ensemble: Ensemble) -> int:
    """Return how many processes fit into memory together, where they are not kept."""
    assert ensemble.source is not None
    return max(_MOST_KEPT_ELEMENTS // _elements(ensemble.source.data), 1)


def chunks(ensemble: Ensemble) -> Iterator[tuple[HostInt, Process]]:
    """Yield numbers of some processes with these: all at once where kept, else as many as fit into memory."""
    everything = np.arange(ensemble.n_processes)
    if ensemble.processes is not None:
        yield everything, ensemble.processes
        return
    for some in np.array_split(everything, -(-ensemble.n_processes // most_at_once(ensemble))):
        yield some, made(ensemble, some)


def of_processes(tree: _Tree, numbers: HostInt) -> _Tree:
    """Return what belongs to the processes of one of the chunks, along the first axis of all leaves."""
    return jax.tree.map(lambda leaf: leaf if len(leaf) == len(numbers) else leaf[numbers], tree)


def thinned(draws: Draws, most: int) -> Draws:
    """At most so many draws: all of them, or some of the same weight, as many of a chain as it counts, evenly spaced.

    They are chosen by systematic resampling, without chance; one that counts for much may be chosen several times.
    """
    if draws.n_draws <= most:
        return draws
    shares = np.cumsum(np.exp(np.asarray(draws.log_weight, dtype=float)))
    places = np.searchsorted(shares / shares[-1], (np.arange(most) + 0.5) / most)
    kept = jax.tree.map(lambda leaf: leaf[places], draws)
    log_weight = jnp.full((most,), -np.log(most), draws.log_weight.dtype)
    return eqx.tree_at(lambda tree: tree.log_weight, kept, log_weight)


def rotations(draws: Draws, reference: Float[Array, "D Q_L"]) -> Float[Array, "draws Q_H Q_H"]:
    """Orthogonal R of each draw that brings its latents nearest to the reference (equation 28).

    A latent h of a draw has the aligned coordinates hR; what is g in aligned coordinates is gRᵀ in those of the draw.
    Coordinates of features, which follow the latents, stay as they are.
    """
    n_latent, n_coordinates = reference.shape[1], draws.latents.shape[2]
    turned = jnp.broadcast_to(jnp.eye(n_coordinates, dtype=reference.dtype), (draws.n_draws, *[n_coordinates] * 2))
    # The R that makes ‖H_s R − μ‖ smallest is the product of both sides' singular vectors of H_sᵀ μ.
    products = jnp.einsum("sdp,dq->spq", draws.latents[:, :, :n_latent], reference)
    left, _, right = jnp.linalg.svd(products, full_matrices=False)
    return turned.at[:, :n_latent, :n_latent].set(left @ right)


def aligned(draws: Draws, reference: Float[Array, "D Q_L"]) -> Float[Array, "draws D Q_H"]:
    """Latents of all draws, turned and mirrored to lie nearest to the reference; the data know no orientation."""
    return draws.latents @ rotations(draws, reference)
