// A condition as weighted particles: its evidence, and the curve at each particle given that.

const LEAST_WEIGHT = 1e-9;

function evidenceOf(model, inputs, outputs) {
  const prepared = prepare(model, inputs);
  const n = prepared.n;
  const gram = Float64Array.from(
    model.inputBasis.kernels.flatMap((kernel) =>
      prepared.points.flatMap((first) => prepared.points.map((second) => covarianceOfPoints(kernel, first, second))),
    ),
  );
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
    shape: shapeOf(model, seen.features, n),
    pairs: model.form.cross(seen.features, seen.features, n, n, model.nFeatures),
  };
}

// The Gaussian y | h of equation 18: factor of its covariance, and y less its mean.
function likelihoodAt(model, seen, latent, noise, own) {
  const { n } = seen;
  const at = latentPoint(model, latent, own);
  const covariance = new Float64Array(n * n);
  const residual = new Float64Array(n);
  let trace = seen.paddedSize - n; // a padded place is an observation of nothing with unit noise
  for (let i = 0; i < n; i++) {
    residual[i] = seen.values[i] - dot(row(seen.shape, i, model.nLatents), at.features);
    for (let j = 0; j <= i; j++) {
      const explained = dot(row(seen.pairs, i * n + j, model.form.size), at.products);
      let prior = 0;
      for (let k = 0; k < at.scale.length; k++) prior += at.scale[k] * seen.gram[(k * n + i) * n + j];
      covariance[i * n + j] = prior - explained + (i === j ? noise : 0);
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
  const { evidence: seen } = condition,
    { nInputs, nKernels, nFeatures } = model;
  const between = new Float64Array(prepared.n * seen.n * nKernels); // k_X(x, X) of each input kernel
  for (let i = 0; i < prepared.n; i++)
    for (let j = 0; j < seen.n; j++) {
      const [own, other] = [row(prepared.features, i, nFeatures), row(seen.features, j, nFeatures)];
      const byKernel = (kernel, k) =>
        seen.compressed
          ? dot(row(own, k, nInputs), row(other, k, nInputs))
          : covarianceOfPoints(kernel, prepared.points[i], seen.points[j]);
      between.set(model.inputBasis.kernels.map(byKernel), (i * seen.n + j) * nKernels);
    }
  const cross = model.form.cross(prepared.features, seen.features, prepared.n, seen.n, nFeatures);
  const kept = d3.range(condition.weights.length).filter((p) => condition.weights[p] > LEAST_WEIGHT);
  const curves = kept.map((p) => {
    const given = likelihoodAt(model, seen, condition.latents[p], condition.noises[p], condition.owns?.[p]);
    const curve = curveAt(model, prepared, condition.latents[p], condition.owns?.[p]);
    const solution = unwhiten(given.factor, seen.n, whiten(given.factor, seen.n, Float64Array.from(given.residual)));
    const explained = new Float64Array(prepared.n * seen.n);
    for (let i = 0; i < prepared.n; i++) {
      const covariance = row(explained, i, seen.n);
      for (let j = 0; j < seen.n; j++) {
        const missing = dot(row(cross, i * seen.n + j, model.form.size), given.at.products);
        covariance[j] = dot(given.at.scale, row(between, i * seen.n + j, nKernels)) - missing;
      }
      curve.mean[i] += dot(covariance, solution);
      whiten(given.factor, seen.n, covariance);
      const left = curve.variance[i] - dot(covariance, covariance);
      curve.variance[i] = Math.max(left, ROUNDING * dot(given.at.scale, row(prepared.prior, i, nKernels)));
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
