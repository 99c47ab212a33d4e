"""The paper's own answer for a new condition: the one Gaussian over its latents that maximises the bound."""

import equinox as eqx
import jax.numpy as jnp
import numpy as np

from lvmogp.algebra.constraints import positive
from lvmogp.algebra.gaussians import LOG_2PI, kl_to_standard_normal
from lvmogp.conditions.evidence import Evidence
from lvmogp.conditions.known_latents import KnownLatents, known_latents
from lvmogp.conditions.new_condition import NoisePrior, noise_prior, normal_nodes
from lvmogp.ground.compiling import compiled
from lvmogp.inference.optimise import maximise
from lvmogp.kernels.psi_statistics import LatentGaussians
from lvmogp.model.inducing_features import latent_moments
from lvmogp.model.posterior import Curves, Posterior, curves
from lvmogp.typing import Array, Float, Scalar

_N_STARTS = 8
_START_VARIANCE = 0.1


class GaussianCondition(eqx.Module):
    """A condition whose latents are Gaussian: its q(h), noise and curve."""

    latents: LatentGaussians
    noise: Scalar
    curves: Curves


class _Variational(eqx.Module):
    mean: Float[Array, " U"]
    noise_deviation: Scalar
    variance: Float[Array, " U"] = positive()
    fixed: tuple[str, ...] = eqx.field(static=True, default=())


class _Setting(eqx.Module):
    model: Posterior
    seen: Evidence
    prior: NoisePrior
    known: KnownLatents


def _bound(candidate: _Variational, setting: _Setting) -> Scalar:
    # −½ [n log 2πσ² + (‖y‖² − 2wᵀAᵀy + tr((G + wwᵀ)AᵀA) + ψ tr K)/σ²] − KL(q(h) ‖ p(h)), equation 21; the divergence
    # is that of the coordinates that are not known.
    seen = setting.seen
    noise = _noise(candidate, setting.prior)
    curve = _curve(setting.model, _latents(candidate, setting.known))
    weights, spread = curve.weights[0], curve.spread[0]
    fitted = seen.features @ weights
    own_noise = seen.noise_variances(noise)
    squares = (seen.values - fitted) ** 2
    spread_part = jnp.sum((seen.features @ spread) * seen.features, axis=1)
    prior_part = curve.prior_variance[0] * jnp.diagonal(seen.gram)
    left_out = (seen.excess_squares + curve.prior_variance[0] * seen.residual) / noise  # by compression
    misfit = jnp.sum(seen.present * (squares + spread_part + prior_part) / own_noise) + left_out
    logarithms = jnp.sum(seen.present * (LOG_2PI + jnp.log(own_noise))) + seen.excess_count * (LOG_2PI + jnp.log(noise))
    fit = -(logarithms + misfit) / 2
    log_noise_prior = -(candidate.noise_deviation**2) / 2
    return fit + log_noise_prior - kl_to_standard_normal(candidate.mean, candidate.variance)


_compiled_bound = compiled(_bound)


def _noise(candidate: _Variational, prior: NoisePrior) -> Scalar:
    return jnp.exp(prior.mean + prior.deviation * candidate.noise_deviation)


def _latents(candidate: _Variational, known: KnownLatents) -> LatentGaussians:
    variance = known.filled(candidate.variance, fill=0.0)
    return LatentGaussians(known.filled(candidate.mean)[None], variance[None], known.n_uncertain)


def _curve(model: Posterior, latents: LatentGaussians) -> Curves:
    return curves(model, latent_moments(model.latent_basis, latents))


def infer_gaussian(model: Posterior, seen: Evidence, known: KnownLatents | None = None) -> GaussianCondition:
    """Maximise the bound over q(h) from the trained latents that explain the evidence best and from the prior."""
    known = known_latents(model, None) if known is None else known
    prior = noise_prior(model)
    setting = _Setting(model, seen, prior, known)
    unknown = np.asarray(known.unknown)
    dtype = model.mean.dtype
    trained = np.asarray(model.parameters.latents.mean)[:, unknown]
    candidates = np.vstack([trained, normal_nodes(_N_STARTS, len(unknown))])

    def at(mean: np.ndarray) -> _Variational:
        return _Variational(
            mean=jnp.asarray(mean, dtype),
            noise_deviation=jnp.zeros((), dtype),
            variance=jnp.full(len(unknown), _START_VARIANCE, dtype),
            fixed=("noise_deviation",) if prior.shared else (),
        )

    if len(unknown) == 0 and prior.shared:
        return _condition(model, at(candidates[0]), setting)
    heights = [float(_compiled_bound(at(mean), setting)) for mean in candidates]
    chosen = candidates[np.argsort(heights)[::-1][:_N_STARTS]]
    runs = [maximise(_bound, at(mean), setting, max_iterations=200, tolerance=1e-4) for mean in chosen]
    best = max(runs, key=lambda run: run.bound).tree
    return _condition(model, best, setting)


def _condition(model: Posterior, found: _Variational, setting: _Setting) -> GaussianCondition:
    latents = _latents(found, setting.known)
    return GaussianCondition(latents, _noise(found, setting.prior), _curve(model, latents))
