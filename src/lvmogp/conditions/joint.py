"""Joint covariances and samples over rows that belong to several conditions.

A prediction of f at a row of a condition with evidence is f̂ = aᵀw + W(y − Aw), so its error is a linear
functional of the process: e = f(x, h) − W f(X_few, h) − Wε. Errors of different conditions covary through
k_H and through the inducing variables (docs/mathematics.md, equations 24 and 25). Trained conditions have no
evidence of their own, W = 0.
"""

import equinox as eqx
import jax
import jax.numpy as jnp

from lvmogp.algebra.linalg import cholesky
from lvmogp.conditions.evidence import Evidence
from lvmogp.conditions.new_condition import ConditionPosterior
from lvmogp.conditions.transformed import GivenScenario, RelativeOutput
from lvmogp.ground.compiling import compiled
from lvmogp.kernels.covariances import cross, gram
from lvmogp.kernels.psi_statistics import LatentGaussians, expected_cross, psi1
from lvmogp.model.inducing_features import latent_moments
from lvmogp.model.posterior import Curves, Posterior, curves_at
from lvmogp.typing import Array, Float


class ErrorFunctional(eqx.Module):
    """Errors of the predictions at the rows of one condition, averaged over its latents.

    ``features`` is ⟨(a − AᵀW) cᵀ⟩, ``gain`` the W of each particle; ``latents`` are particles with weights or,
    for a trained condition, one Gaussian.
    """

    points: Float[Array, "n Q_X"]
    covariance: Float[Array, "n n"]
    features: Float[Array, "n M_X M_H"]
    weights: Float[Array, " P"]
    latents: LatentGaussians
    gain: Float[Array, "P n m"] | None
    evidence: Evidence | None


@compiled
def trained_functional(
    model: Posterior, curve: Curves, latents: LatentGaussians, points: Float[Array, "n Q_X"]
) -> ErrorFunctional:
    """Errors at rows of a trained condition; ``curve`` and ``latents`` hold that one condition."""
    features = model.input_basis.features(points)
    covariance = curve.prior_variance[0] * gram(model.input_basis.kernel, points)
    mean_features = latent_moments(model.latent_basis, latents).mean[0].astype(features.dtype)
    return ErrorFunctional(
        points=points,
        covariance=covariance + features @ curve.spread[0] @ features.T,
        features=features[:, :, None] * mean_features,
        weights=jnp.ones(1, features.dtype),
        latents=latents,
        gain=None,
        evidence=None,
    )


@compiled
def new_functional(model: Posterior, condition: ConditionPosterior, points: Float[Array, "n Q_X"]) -> ErrorFunctional:
    """Errors at rows of a new condition: within it, the covariance of the mixture over its particles."""
    seen = condition.evidence
    features = model.input_basis.features(points)
    to_evidence = seen.cross_gram(model.input_basis, points)
    prior = gram(model.input_basis.kernel, points)
    latent_features = model.latent_basis.features(condition.latents)

    def one_particle(shape: Curves, factor: Array, solution: Array) -> tuple[Array, Array, Array]:
        covariance = shape.prior_variance * to_evidence + features @ shape.spread @ seen.features.T
        gain = jax.scipy.linalg.cho_solve((factor, True), covariance.T).T  # W = κ(x, X)(κ(X, X) + σ²I)⁻¹
        own = shape.prior_variance * prior + features @ shape.spread @ features.T - gain @ covariance.T
        return features @ shape.weights + covariance @ solution, own, gain

    means, own, gain = jax.lax.map(
        lambda particle: one_particle(*particle),
        (condition.curves, condition.factor, condition.solution),
        batch_size=32,
    )
    deviations = means - condition.weights @ means
    between = (deviations.T * condition.weights) @ deviations
    reduced = features - gain @ seen.features  # rows a − AᵀW of each particle
    return ErrorFunctional(
        points=points,
        covariance=jnp.einsum("p,pnm->nm", condition.weights, own) + between,
        features=jnp.einsum("p,pnx,ph->nxh", condition.weights, reduced, latent_features),
        weights=condition.weights,
        latents=LatentGaussians(condition.latents, jnp.zeros_like(condition.latents), n_uncertain=0),
        gain=gain,
        evidence=seen,
    )


@compiled
def cross_covariance(model: Posterior, first: ErrorFunctional, second: ErrorFunctional) -> Float[Array, "n m"]:
    """Covariance of the errors of two different conditions, whose latents are independent (equation 25)."""
    through_inducing = model.covariance.bilinear(first.features, second.features) - jnp.einsum(
        "nxh,mxh->nm", first.features, second.features
    )
    shared = _expected_kernel(model, first, second) * first.weights[:, None] * second.weights
    kernel, basis = model.input_basis.kernel, model.input_basis
    through_kernel = jnp.sum(shared) * cross(kernel, first.points, second.points)
    if first.evidence is not None:
        gain = jnp.einsum("p,pnm->nm", jnp.sum(shared, axis=1), first.gain)
        through_kernel -= gain @ first.evidence.cross_gram(basis, second.points).T
    if second.evidence is not None:
        gain = jnp.einsum("p,pnm->nm", jnp.sum(shared, axis=0), second.gain)
        through_kernel -= second.evidence.cross_gram(basis, first.points) @ gain.T
    if first.evidence is not None and second.evidence is not None:
        between = first.evidence.gram_with(basis, second.evidence)
        weighted = jnp.einsum("pq,pnm->qnm", shared, first.gain)
        through_kernel += jnp.einsum("qnm,mk,qjk->nj", weighted, between, second.gain)
    return through_inducing + through_kernel


def _expected_kernel(model: Posterior, first: ErrorFunctional, second: ErrorFunctional) -> Float[Array, "P R"]:
    # ⟨k_H(h, h')⟩ between particles, Gaussians, or one of each.
    kernel = model.latent_basis.kernel
    if first.gain is None and second.gain is None:
        return expected_cross(kernel, first.latents, second.latents)
    if first.gain is None:
        return psi1(kernel, second.latents.mean, first.latents)
    if second.gain is None:
        return psi1(kernel, first.latents.mean, second.latents).T
    return cross(kernel, first.latents.mean, second.latents.mean)


class Draw(eqx.Module):
    """One draw of a condition's latents and noise, with the evidence that its curve is conditioned on.

    Draws of several conditions, and several of them, are stacked along leading axes.
    """

    latent: Float[Array, "*C Q_H"]
    noise: Float[Array, "*C"]
    evidence: Evidence


class _DrawnFunctional(eqx.Module):
    # Errors at the rows of one condition given its latents.
    points: Float[Array, "n Q_X"]
    latent: Float[Array, " Q_H"]
    mean: Float[Array, " n"]
    gain: Float[Array, "n m"]
    features: Float[Array, "n M_X M_H"]
    from_noise: Float[Array, "n n"]
    evidence: Evidence


def _drawn_functional(model: Posterior, draw: Draw, points: Float[Array, "n Q_X"]) -> _DrawnFunctional:
    seen = draw.evidence
    curve = curves_at(model, draw.latent[None])
    features = model.input_basis.features(points)
    noise = seen.noise_variances(draw.noise)
    scale, spread, weights = curve.prior_variance[0], curve.spread[0], curve.weights[0]
    factor = seen.factor(scale * seen.gram + seen.features @ spread @ seen.features.T, draw.noise)
    to_evidence = scale * seen.cross_gram(model.input_basis, points) + features @ spread @ seen.features.T
    gain = jax.scipy.linalg.cho_solve((factor, True), to_evidence.T).T
    latent_features = model.latent_basis.features(draw.latent[None])[0]
    return _DrawnFunctional(
        points=points,
        latent=draw.latent,
        mean=features @ weights + gain @ (seen.values - seen.features @ weights),
        gain=gain,
        features=(features - gain @ seen.features)[:, :, None] * latent_features,
        from_noise=(gain * noise) @ gain.T,
        evidence=seen,
    )


def _given_draw(
    model: Posterior, draws: Draw, rows: Float[Array, "C n Q_X"]
) -> tuple[Float[Array, " rows"], Float[Array, "rows rows"]]:
    """Mean and covariance of f at the rows of C conditions given one draw of all their latents.

    ``draws`` is stacked over conditions. Prediction errors are joint: with E = [I, −W] over rows and evidence,
    cov(e) = E κ Eᵀ + W diag(σ²) Wᵀ.
    """
    functionals = jax.vmap(lambda draw, points: _drawn_functional(model, draw, points))(draws, rows)
    n_rows = rows.shape[0] * rows.shape[1]
    features = functionals.features.reshape(n_rows, *model.mean.shape)
    covariance = model.covariance.bilinear(features, features) - jnp.einsum("nxh,mxh->nm", features, features)
    covariance += jax.scipy.linalg.block_diag(*functionals.from_noise)
    between = gram(model.latent_basis.kernel, functionals.latent)
    blocks = jax.vmap(lambda first: jax.vmap(lambda second: _functional_gram(model, first, second))(functionals))(
        functionals
    )
    through_kernel = (between[:, :, None, None] * blocks).transpose(0, 2, 1, 3)
    return functionals.mean.reshape(n_rows), covariance + through_kernel.reshape(covariance.shape)


@compiled
def sample_curves(
    model: Posterior,
    draws: Draw,
    rows: Float[Array, "C n Q_X"],
    normals: Float[Array, "L C n"],
) -> Float[Array, "L C n"]:
    """F at the rows of C conditions given each of L draws of all their latents, from standard normal numbers.

    Latents and noise of ``draws`` are stacked over draws and conditions, its evidence over conditions.
    """

    def one(drawn: tuple[Array, Array, Array]) -> Float[Array, "C n"]:
        latent, noise, own = drawn
        mean, covariance = _given_draw(model, Draw(latent, noise, draws.evidence), rows)
        return (mean + cholesky(covariance) @ own.reshape(-1)).reshape(own.shape)

    return jax.lax.map(one, (draws.latent, draws.noise, normals))


@compiled
def relative_sums(
    model: Posterior, draws: Draw, weights: Float[Array, " L"], rows: Float[Array, "C n Q_X"], output: RelativeOutput
) -> tuple[Float[Array, " rows"], Float[Array, "rows rows"]]:
    """The sums of equation 52, for outputs of which a transform is modelled, over L weighted draws.

    Latents and noise of ``draws`` are stacked over draws and conditions, its evidence over conditions.
    """

    def given(drawn: tuple[Array, Array]) -> GivenScenario:
        return GivenScenario(*_given_draw(model, Draw(*drawn, draws.evidence), rows), drawn[1])

    return output.sums(given, (draws.latent, draws.noise), weights)


def _functional_gram(model: Posterior, first: _DrawnFunctional, second: _DrawnFunctional) -> Float[Array, "n n"]:
    # [I, −W] k_X [I, −W']ᵀ over the rows and the evidence of two conditions.
    covariance = cross(model.input_basis.kernel, first.points, second.points)
    covariance = covariance - first.gain @ first.evidence.cross_gram(model.input_basis, second.points).T
    covariance = covariance - second.evidence.cross_gram(model.input_basis, first.points) @ second.gain.T
    between = first.evidence.gram_with(model.input_basis, second.evidence)
    return covariance + first.gain @ between @ second.gain.T
