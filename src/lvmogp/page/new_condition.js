// The posterior of a condition's latents from a few observations, step by step as in new_condition.py.
//
// The same starts, quasi-random nodes and numbers of steps as there, so that both find the same particles. The one
// difference is that derivatives are central differences.

const LEAST_SHARE = 1e-4;
const LEAST_WEIGHT = 1e-9;
const STEP_IN_WIDTHS = 3e-3;

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
  return { at, residual, ...cholesky(covariance, n, trace / seen.paddedSize, model.jitter) };
}

function noiseAt(model, theta) {
  const { shared, priorMean, priorDeviation } = model.noise;
  return Math.exp(shared ? priorMean : priorMean + priorDeviation * theta[model.nLatent]);
}

// log p(θ) + log p(y | θ) up to a constant (equation 19).
function logPosterior(model, seen, theta) {
  const { factor, residual, shift } = likelihoodAt(model, seen, theta.subarray(0, model.nLatent), noiseAt(model, theta));
  if (factor === null) return NaN;
  let value = -dot(theta, theta) / 2 - ((seen.paddedSize - seen.n) * Math.log1p(shift)) / 2;
  whiten(factor, seen.n, residual);
  for (let i = 0; i < seen.n; i++) value -= residual[i] ** 2 / 2 + Math.log(factor[i * seen.n + i]);
  return value;
}

// Gradient and Hessian by central differences whose steps are small parts of the width of the peak.
function derivatives(target, theta) {
  let steps = theta.map(() => 1e-3);
  for (let round = 0; ; round++) {
    const found = differences(target, theta, steps);
    const n = theta.length;
    const better = steps.map((_, q) => STEP_IN_WIDTHS / Math.sqrt(Math.max(1, Math.abs(found.hessian[q * n + q]))));
    const settled = better.every((step, q) => step > steps[q] / 2 && step < steps[q] * 4);
    if (settled || round === 4) return found;
    steps = better;
  }
}

function differences(target, theta, steps) {
  const n = theta.length;
  const at = (...moves) => {
    const moved = Float64Array.from(theta);
    for (const [q, sign] of moves) moved[q] += sign * steps[q];
    return target(moved);
  };
  const centre = target(theta);
  const gradient = new Float64Array(n), hessian = new Float64Array(n * n);
  for (let q = 0; q < n; q++) {
    const above = at([q, 1]), below = at([q, -1]);
    gradient[q] = (above - below) / (2 * steps[q]);
    hessian[q * n + q] = (above - 2 * centre + below) / steps[q] ** 2;
    for (let r = 0; r < q; r++) {
      const mixed = at([q, 1], [r, 1]) - at([q, 1], [r, -1]) - at([q, -1], [r, 1]) + at([q, -1], [r, -1]);
      hessian[q * n + r] = hessian[r * n + q] = mixed / (4 * steps[q] * steps[r]);
    }
  }
  return { gradient, hessian };
}

// Eigenvalues of −Hessian, made positive and never below those of the prior.
function curvatureOf(hessian, n) {
  const { values, vectors } = eigenSymmetric(hessian.map((value) => -value), n);
  return { values: values.map((value) => Math.max(Math.abs(value), 1)), vectors };
}

// V diag(1/λ) Vᵀ · scale
function inverseOf({ values, vectors }, n, scale) {
  const result = new Float64Array(n * n);
  for (let i = 0; i < n; i++)
    for (let j = 0; j < n; j++)
      for (let k = 0; k < n; k++)
        result[i * n + j] += (scale * vectors[i * n + k] * vectors[j * n + k]) / values[k];
  return result;
}

function newtonStep(search, target, theta) {
  const n = theta.length;
  const { gradient, hessian } = derivatives(target, theta);
  const inverse = inverseOf(curvatureOf(hessian, n), n, 1);
  const step = theta.map((_, i) => dot(row(inverse, i, n), gradient));
  const length = Math.max(Math.sqrt(dot(step, step)), 1);
  let best = theta, bestHeight = target(theta);
  for (const fraction of search.stepFractions) {
    const tried = theta.map((value, q) => value + (fraction * step[q]) / length);
    const height = target(tried);
    if (height > bestHeight) [best, bestHeight] = [tried, height];
  }
  return best;
}

// Half the best starts, half spread over the rest.
function chosenStarts(search, target, starts, wanted) {
  const heights = starts.map(target);
  const order = starts.map((_, i) => i).sort((i, j) => heights[j] - heights[i]);
  const nBest = Math.min(Math.floor(wanted / 2), starts.length);
  const places = new Set(Array.from({ length: nBest }, (_, i) => i));
  const nSpread = wanted - nBest, last = starts.length - 1;
  for (let i = 0; i < nSpread; i++) places.add(Math.trunc(nBest + ((last - nBest) * i) / (nSpread - 1)));
  return [...places].map((place) => starts[order[place]]);
}

function localGaussians(search, target, starts) {
  const n = starts[0].length;
  const parts = starts.map((start) => {
    let mean = start;
    for (let step = 0; step < search.newtonSteps; step++) {
      const moved = newtonStep(search, target, mean);
      if (moved === mean) break; // no step goes up, nor will it next time
      mean = moved;
    }
    const curvature = curvatureOf(derivatives(target, mean).hessian, n);
    const factor = plainCholesky(inverseOf(curvature, n, search.widening), n, 0);
    const height = target(mean) - curvature.values.reduce((sum, value) => sum + Math.log(value), 0) / 2;
    return { mean, factor, height: height / 2 };
  });
  const total = logSumExp(parts.map((part) => part.height));
  const identity = Float64Array.from({ length: n * n }, (_, i) => (i % (n + 1) === 0 ? 1 : 0));
  return [
    ...parts.map(({ mean, factor, height }) => ({
      mean,
      factor,
      logShare: height - total + Math.log(1 - search.priorShare),
    })),
    { mean: new Float64Array(n), factor: identity, logShare: Math.log(search.priorShare) },
  ];
}

// Quasi-random points pushed through the mixture; the first coordinate picks the component.
function drawPoints(mixture, nodes, nPoints) {
  const n = mixture[0].mean.length;
  let sum = 0;
  const ends = mixture.map((part) => (sum += Math.exp(part.logShare)));
  return Array.from({ length: nPoints }, (_, p) => {
    const node = row(nodes, p, n + 1);
    const found = ends.findIndex((end) => end >= node[0]);
    const { mean, factor } = mixture[found < 0 ? mixture.length - 1 : found];
    return mean.map((value, i) => {
      for (let j = 0; j <= i; j++) value += factor[i * n + j] * node[1 + j];
      return value;
    });
  });
}

// Normalised weights, and how much of each point belongs to each component.
function importance(target, mixture, thetas) {
  const n = thetas[0].length;
  const joints = thetas.map((theta) =>
    mixture.map(({ mean, factor, logShare }) => {
      const whitened = whiten(factor, n, theta.map((value, q) => value - mean[q]));
      let logDensity = logShare - dot(whitened, whitened) / 2;
      for (let q = 0; q < n; q++) logDensity -= Math.log(factor[q * n + q]);
      return logDensity;
    }),
  );
  const logProposals = joints.map(logSumExp);
  const logWeights = thetas.map((theta, p) => {
    const height = target(theta);
    return Number.isFinite(height) ? height - logProposals[p] : -Infinity;
  });
  const total = logSumExp(logWeights);
  return {
    weights: logWeights.map((value) => Math.exp(value - total)),
    responsibilities: joints.map((joint, p) => joint.map((value) => Math.exp(value - logProposals[p]))),
  };
}

// A condition as weighted particles, from observations in the user's units.
function inferCondition(model, inputs, outputs) {
  const { search } = model;
  const seen = evidenceOf(model, inputs, outputs);
  const target = (theta) => logPosterior(model, seen, theta);
  const width = search.nTheta;
  const starts = Array.from({ length: search.starts.length / width }, (_, i) => row(search.starts, i, width));
  const wanted = seen.n <= search.manyPoints ? search.nStarts : search.nStartsOfManyPoints;
  const first = localGaussians(search, target, chosenStarts(search, target, starts, wanted));
  const scouts = importance(target, first, drawPoints(first, search.nodes, search.nScouts));
  const shares = first.map((_, k) => {
    const share = scouts.weights.reduce((sum, weight, p) => sum + weight * scouts.responsibilities[p][k], 0);
    return (k === first.length - 1 ? Math.max(share, search.priorShare) : share) + LEAST_SHARE;
  });
  const total = shares.reduce((sum, share) => sum + share, 0);
  const proposal = first.map((part, k) => ({ ...part, logShare: Math.log(shares[k] / total) }));
  const thetas = drawPoints(proposal, search.nodes, search.nParticles);
  const { weights } = importance(target, proposal, thetas);
  return {
    kind: "particles",
    latents: thetas.map((theta) => theta.subarray(0, model.nLatent)),
    noises: thetas.map((theta) => noiseAt(model, theta)),
    weights,
    evidence: seen,
  };
}

function latentMoments(condition) {
  const { latents, weights } = condition;
  const mean = latents[0].map((_, q) => latents.reduce((sum, latent, p) => sum + weights[p] * latent[q], 0));
  const variance = mean.map((centre, q) => latents.reduce((sum, latent, p) => sum + weights[p] * (latent[q] - centre) ** 2, 0));
  return { mean: Array.from(mean), sd: Array.from(variance, Math.sqrt) };
}

// Curves of the particles, each conditioned on the evidence (equation 22).
function predictParticles(model, prepared, condition, includeNoise) {
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
    for (let i = 0; i < prepared.n; i++) {
      const covariance = new Float64Array(seen.n);
      for (let j = 0; j < seen.n; j++) {
        const explained = dot(row(cross, i * seen.n + j, model.form.size), given.at.products);
        covariance[j] = given.at.variance * between[i * seen.n + j] - explained;
      }
      curve.mean[i] += dot(covariance, solution);
      whiten(given.factor, seen.n, covariance);
      const left = curve.variance[i] - dot(covariance, covariance);
      curve.variance[i] = Math.max(left, ROUNDING * given.at.variance * prepared.prior[i]);
    }
    return curve;
  });
  const mixture = mixtureOf(kept.map((p) => condition.weights[p]), kept.map((p) => condition.noises[p]), curves);
  return { ...outputMoments(model, mixture, includeNoise), ...outputInterval(model, mixture, includeNoise) };
}
