"""The paper's own answer for a new condition: the one Gaussian over its latents that maximises the bound."""

import equinox as eqx
import jax.numpy as jnp
import numpy as np

from lvmogp.algebra.constraints import positive
from lvmogp.algebra.gaussians import LOG_2PI, kl_to_standard_normal
from lvmogp.conditions.condition import Condition, KnownLatents, condition_of_gaussian
from lvmogp.conditions.ensemble import ClosedForm, Ensemble, NoisePrior
from lvmogp.conditions.few_observations import FewObservations
from lvmogp.conditions.search import normal_nodes
from lvmogp.ground.compiling import compiled
from lvmogp.inference.optimise import maximise
from lvmogp.kernels.covariances import diagonal
from lvmogp.kernels.psi_statistics import LatentGaussians
from lvmogp.model.curve_moments import curve_moments
from lvmogp.model.posterior import Posterior
from lvmogp.typing import Array, Float, HostFloat, Scalar

_N_STARTS = 8
_START_VARIANCE = 0.1
_MOST_ITERATIONS, _LEAST_GAIN = 200, 1e-4


class _Candidate(eqx.Module):
    # q(h) over the coordinates that are not known, and the standardised log noise.
    mean: Float[Array, " U"]
    noise_deviation: Scalar
    variance: Float[Array, " U"] = positive()
    fixed: tuple[str, ...] = eqx.field(static=True, default=())


class _Setting(eqx.Module):
    model: Posterior
    seen: FewObservations
    prior: NoisePrior
    known: KnownLatents


def _bound(candidate: _Candidate, setting: _Setting) -> Scalar:
    # −½ Σ_n [log 2πσ_n² + ((y_n − aᵀw)² + aᵀGa + ψ k(x, x))/σ_n²] − KL(q(h) ‖ p(h)), equation 21; the divergence is
    # that of the coordinates that are not known.
    seen, basis = setting.seen, setting.model.input_basis
    features = basis.features(seen.inputs)
    curve = curve_moments(setting.model, _latents(candidate, setting.known))
    noise = seen.noise(_noise(candidate, setting.prior))
    squares = (seen.values - features @ curve.weights[0]) ** 2
    spread = jnp.sum((features @ curve.spread[0]) * features, axis=1)
    prior = curve.prior_variance[0] * diagonal(basis.kernel, seen.inputs)
    fit = -jnp.sum(seen.present * (LOG_2PI + jnp.log(noise) + (squares + spread + prior) / noise)) / 2
    log_noise_prior = -(candidate.noise_deviation**2) / 2
    return fit + log_noise_prior - kl_to_standard_normal(candidate.mean, candidate.variance)


_compiled_bound = compiled(_bound)


def _noise(candidate: _Candidate, prior: NoisePrior) -> Scalar:
    return jnp.exp(prior.mean + prior.deviation * candidate.noise_deviation)


def _latents(candidate: _Candidate, known: KnownLatents) -> LatentGaussians:
    variance = known.filled(candidate.variance, fill=0.0)
    return LatentGaussians(known.filled(candidate.mean)[None], variance[None], known.n_uncertain)


def infer_gaussian(ensemble: Ensemble, fit: ClosedForm, seen: FewObservations, known: KnownLatents) -> Condition:
    """Maximise the bound over q(h) from the trained latents that explain the observations best and from the prior."""
    shared, unknown = ensemble.noise_prior.shared, np.asarray(known.unknown)
    prior = NoisePrior(ensemble.noise_prior.mean[0], ensemble.noise_prior.deviation[0], shared)
    setting = _Setting(fit.posterior, seen, prior, known)
    candidates = np.vstack([np.asarray(ensemble.latents[0])[:, unknown], normal_nodes(_N_STARTS, len(unknown))])

    def at(mean: HostFloat) -> _Candidate:
        return _Candidate(
            mean=jnp.asarray(mean, ensemble.dtype),
            noise_deviation=jnp.zeros((), ensemble.dtype),
            variance=jnp.full(len(unknown), _START_VARIANCE, ensemble.dtype),
            fixed=("noise_deviation",) if shared else (),
        )

    best = at(candidates[0])
    if len(unknown) or not shared:
        heights = [float(_compiled_bound(at(mean), setting)) for mean in candidates]
        chosen = candidates[np.argsort(heights)[::-1][:_N_STARTS]]
        runs = [
            maximise(_bound, at(mean), setting, max_iterations=_MOST_ITERATIONS, tolerance=_LEAST_GAIN)
            for mean in chosen
        ]
        best = max(runs, key=lambda run: run.bound).tree
    return condition_of_gaussian(ensemble, _latents(best, known), _noise(best, prior))
