// The posterior of a condition's latents from a few observations, step by step as in conditions/infer.py and search.py.
//
// Starts, quasi-random nodes and numbers of steps are those of there, so that both find the same particles. The one
// difference is that derivatives are central differences.

const LEAST_SHARE = 1e-4;
const STEP_IN_WIDTHS = 3e-3;

// σ² and ρ² at θ: the latents, then log σ² and log ρ² in deviations from their means, where they are unknown.
function noiseAt(model, theta) {
  const { shared, priorMean, priorDeviation, ownDeviation } = model.noise;
  if (shared) return { noise: Math.exp(priorMean), own: 1 };
  const relative = priorDeviation * theta[model.nLatent];
  const own = ownDeviation === null ? relative : ownDeviation * theta[model.nLatent + 1];
  return { noise: Math.exp(priorMean + relative), own: Math.exp(own) };
}

// log p(θ) + log p(y | θ) up to a constant (equation 19).
function logPosterior(model, seen, theta) {
  const { noise, own } = noiseAt(model, theta);
  const { factor, residual, shift } = likelihoodAt(model, seen, theta.subarray(0, model.nLatent), noise, own);
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
  const gradient = new Float64Array(n),
    hessian = new Float64Array(n * n);
  for (let q = 0; q < n; q++) {
    const above = at([q, 1]),
      below = at([q, -1]);
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
  const { values, vectors } = eigenSymmetric(
    hessian.map((value) => -value),
    n,
  );
  return { values: values.map((value) => Math.max(Math.abs(value), 1)), vectors };
}

// V diag(1/λ) Vᵀ · scale
function inverseOf({ values, vectors }, n, scale) {
  const result = new Float64Array(n * n);
  for (let i = 0; i < n; i++)
    for (let j = 0; j < n; j++)
      for (let k = 0; k < n; k++) result[i * n + j] += (scale * vectors[i * n + k] * vectors[j * n + k]) / values[k];
  return result;
}

function newtonStep(search, target, theta) {
  const n = theta.length;
  const { gradient, hessian } = derivatives(target, theta);
  const inverse = inverseOf(curvatureOf(hessian, n), n, 1);
  const step = theta.map((_, i) => dot(row(inverse, i, n), gradient));
  const length = Math.max(Math.sqrt(dot(step, step)), 1);
  let best = theta,
    bestHeight = target(theta);
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
  const nSpread = wanted - nBest,
    last = starts.length - 1;
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
      const whitened = whiten(
        factor,
        n,
        theta.map((value, q) => value - mean[q]),
      );
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

// A condition as weighted particles, from observations in the user's units; null where no latents explain them. Without
// observations they are points of the prior.
function inferCondition(model, inputs, outputs) {
  const { search } = model;
  const seen = evidenceOf(model, inputs, outputs);
  if (seen.n === 0) {
    const thetas = rowsOf(search.priorNodes, search.nTheta);
    return conditionOf(model, seen, thetas, new Float64Array(thetas.length).fill(1 / thetas.length));
  }
  const target = (theta) => logPosterior(model, seen, theta);
  const starts = rowsOf(search.starts, search.nTheta).filter((start) => Number.isFinite(target(start)));
  if (starts.length === 0) return null; // observations of extreme size
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
  return conditionOf(model, seen, thetas, importance(target, proposal, thetas).weights);
}

function conditionOf(model, seen, thetas, weights) {
  return {
    kind: "particles",
    latents: thetas.map((theta) => theta.subarray(0, model.nLatent)),
    noises: thetas.map((theta) => noiseAt(model, theta).noise),
    owns: thetas.map((theta) => noiseAt(model, theta).own),
    weights,
    evidence: seen,
  };
}
