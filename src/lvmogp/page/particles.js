// A condition as weighted particles: its evidence, and the curve at each particle given that.

const LEAST_WEIGHT = 1e-9;

function evidenceOf(model, inputs, outputs) {
  const prepared = prepare(model, inputs);
  const n = prepared.n;
  const gram = new Float64Array(n * n);
  for (let i = 0; i < n; i++)
    for (let j = 0; j < n; j++)
      gram[i * n + j] = covarianceOfPoints(model.inputBasis.kernel, prepared.points[i], prepared.points[j]);
  return completeEvidence(model, {
    points: prepared.points,
    features: prepared.features,
    gram,
    values: Float64Array.from(outputs, (value) => standardisedOutput(model, value)),
    errors: new Float64Array(n),
    paddedSize: model.search.paddedSizes.find((size) => size >= n),
    compressed: false,
  });
}

function completeEvidence(model, seen) {
  const n = seen.values.length;
  return {
    ...seen,
    n,
    shape: timesTransposed(seen.features, model.meanByLatent, model.nInputs),
    pairs: model.form.cross(seen.features, seen.features, n, n),
  };
}

// The Gaussian y | h of equation 18: factor of its covariance, and y less its mean.
function likelihoodAt(model, seen, latent, noise) {
  const { n } = seen;
  const at = latentPoint(model, latent);
  const covariance = new Float64Array(n * n);
  const residual = new Float64Array(n);
  let trace = seen.paddedSize - n; // a padded place is an observation of nothing with unit noise
  for (let i = 0; i < n; i++) {
    residual[i] = seen.values[i] - dot(row(seen.shape, i, model.nLatents), at.features);
    for (let j = 0; j <= i; j++) {
      const explained = dot(row(seen.pairs, i * n + j, model.form.size), at.products);
      covariance[i * n + j] = at.variance * seen.gram[i * n + j] - explained + (i === j ? noise : 0);
    }
    trace += covariance[i * n + i];
  }
  return { at, residual, ...factorBesideErrors(covariance, seen.errors, n, trace / seen.paddedSize, model.jitter) };
}

function latentMoments(condition) {
  const { latents, weights } = condition;
  const mean = latents[0].map((_, q) => latents.reduce((sum, latent, p) => sum + weights[p] * latent[q], 0));
  const variance = mean.map((centre, q) =>
    latents.reduce((sum, latent, p) => sum + weights[p] * (latent[q] - centre) ** 2, 0),
  );
  return { mean: Array.from(mean), sd: Array.from(variance, Math.sqrt) };
}

// Curves of the particles, each conditioned on the evidence (equation 22), with L⁻¹κ(X, x) of each input as `explained`.
function particleCurves(model, prepared, condition) {
  const { evidence: seen } = condition;
  const between = new Float64Array(prepared.n * seen.n); // k_X(x, X)
  for (let i = 0; i < prepared.n; i++)
    for (let j = 0; j < seen.n; j++)
      between[i * seen.n + j] = seen.compressed
        ? dot(row(prepared.features, i, model.nInputs), row(seen.features, j, model.nInputs))
        : covarianceOfPoints(model.inputBasis.kernel, prepared.points[i], seen.points[j]);
  const cross = model.form.cross(prepared.features, seen.features, prepared.n, seen.n);
  const kept = d3.range(condition.weights.length).filter((p) => condition.weights[p] > LEAST_WEIGHT);
  const curves = kept.map((p) => {
    const given = likelihoodAt(model, seen, condition.latents[p], condition.noises[p]);
    const curve = curveAt(model, prepared, condition.latents[p]);
    const solution = unwhiten(given.factor, seen.n, whiten(given.factor, seen.n, Float64Array.from(given.residual)));
    const explained = new Float64Array(prepared.n * seen.n);
    for (let i = 0; i < prepared.n; i++) {
      const covariance = row(explained, i, seen.n);
      for (let j = 0; j < seen.n; j++) {
        const missing = dot(row(cross, i * seen.n + j, model.form.size), given.at.products);
        covariance[j] = given.at.variance * between[i * seen.n + j] - missing;
      }
      curve.mean[i] += dot(covariance, solution);
      whiten(given.factor, seen.n, covariance);
      const left = curve.variance[i] - dot(covariance, covariance);
      curve.variance[i] = Math.max(left, ROUNDING * given.at.variance * prepared.prior[i]);
    }
    return { ...curve, at: given.at, explained };
  });
  return mixtureOf(
    kept.map((p) => condition.weights[p]),
    kept.map((p) => condition.noises[p]),
    curves,
  );
}

function predictParticles(model, prepared, condition, includeNoise) {
  const mixture = particleCurves(model, prepared, condition);
  return { ...outputMoments(model, mixture, includeNoise), ...outputInterval(model, mixture, includeNoise) };
}

// Conditions added before the page was made come as particles with their evidence.
function completeCondition(model, condition) {
  if (condition.kind !== "particles") return;
  condition.latents = rowsOf(condition.latents, model.nLatent);
  const { evidence } = condition;
  condition.evidence = completeEvidence(model, { ...evidence, points: rowsOf(evidence.points, model.inputs.length) });
}
