// The trained model: curves at given latents and of conditions, as in model/process.py and conditions/predictive.py.

const Z95 = 1.959963984540054;
const QUANTILE_STEPS = 40;
const ROUNDING = 10 * Number.EPSILON;

// From the decoded document, with what serves all predictions.
function trainedModel(document) {
  const nInputs = document.inputBasis.nPoints,
    nLatents = document.latentBasis.nPoints;
  return {
    ...document,
    nInputs,
    nLatents,
    form: covarianceForm(document.covariance, nInputs, nLatents),
    meanByLatent: transposed(document.mean, nLatents),
  };
}

// L⁻¹k_u(x) for one point in standardised units.
function featuresOf(basis, point) {
  const n = basis.nPoints,
    width = point.length;
  const values = new Float64Array(n);
  for (let i = 0; i < n; i++) values[i] = covarianceOfPoints(basis.kernel, row(basis.points, i, width), point);
  return whiten(basis.factor, n, values);
}

function standardisedInput(model, input) {
  const { inputMean, inputScale } = model.scaling;
  return Float64Array.from(
    input,
    (value, q) => (transformedInput(model.inputs[q], value) - inputMean[q]) / inputScale[q],
  );
}

function standardisedOutput(model, output) {
  return (transformOf(model).forward(output) - model.scaling.outputMean) / model.scaling.outputScale;
}

// Everything about inputs (in the user's units) that does not depend on latents.
function prepare(model, inputs) {
  const points = inputs.map((input) => standardisedInput(model, input));
  const features = new Float64Array(points.length * model.nInputs);
  points.forEach((point, i) => features.set(featuresOf(model.inputBasis, point), i * model.nInputs));
  return {
    n: points.length,
    points,
    features,
    prior: Float64Array.from(points, (point) => covarianceOfPoints(model.inputBasis.kernel, point, point)),
    shape: timesTransposed(features, model.meanByLatent, model.nInputs), // rows (Mᵀa)ᵀ
    grams: model.form.own(features, points.length),
  };
}

function latentPoint(model, latent) {
  const features = featuresOf(model.latentBasis, latent); // c(h)
  return {
    features,
    products: model.form.products(features),
    variance: covarianceOfPoints(model.latentBasis.kernel, latent, latent),
  };
}

// Mean and variance of f at prepared inputs for one latent, in standardised units.
function curveAt(model, prepared, latent) {
  const at = latentPoint(model, latent);
  const mean = new Float64Array(prepared.n),
    variance = new Float64Array(prepared.n);
  for (let i = 0; i < prepared.n; i++) {
    const prior = at.variance * prepared.prior[i];
    mean[i] = dot(row(prepared.shape, i, model.nLatents), at.features);
    const left = prior - dot(row(prepared.grams, i, model.form.size), at.products);
    variance[i] = Math.max(left, ROUNDING * prior);
  }
  return { mean, variance };
}

// Closed-form moments of a condition whose latents are Gaussian (equations 15 to 17).
function gaussianCurve(model, prepared, moments) {
  const n = model.nLatents;
  const second = new Float64Array(n * n);
  for (let j = 0, place = 0; j < n; j++)
    for (let k = j; k < n; k++, place++) second[j * n + k] = second[k * n + j] = moments.second[place];
  const products = model.form.ofSecondMoment(second);
  const mean = new Float64Array(prepared.n),
    variance = new Float64Array(prepared.n);
  for (let i = 0; i < prepared.n; i++) {
    const shape = row(prepared.shape, i, n);
    const prior = moments.priorVariance * prepared.prior[i];
    mean[i] = dot(shape, moments.mean);
    let ofLatents = -(mean[i] ** 2); // uᵀ(T − c̄c̄ᵀ)u, u = Mᵀa
    for (let j = 0; j < n; j++) ofLatents += shape[j] * dot(row(second, j, n), shape);
    const left = prior + ofLatents - dot(row(prepared.grams, i, model.form.size), products);
    variance[i] = Math.max(left, ROUNDING * prior);
  }
  return { mean, variance };
}

// A curve as posterior draws have it at the inducing inputs: mean aᵀw, variance ψk(x, x) + aᵀGa.
function drawnCurve(model, prepared, curve) {
  const n = model.nInputs;
  const mean = new Float64Array(prepared.n),
    variance = new Float64Array(prepared.n);
  for (let i = 0; i < prepared.n; i++) {
    const features = row(prepared.features, i, n);
    const prior = curve.priorVariance * prepared.prior[i];
    mean[i] = dot(features, curve.weights);
    let left = prior;
    for (let j = 0; j < n; j++) left += features[j] * dot(row(curve.spread, j, n), features);
    variance[i] = Math.max(left, ROUNDING * prior);
  }
  return { mean, variance };
}

// Weighted curves, one a latent: Σ_p w_p N(mean_p, variance_p + noise_p).
function mixtureOf(weights, noises, curves) {
  return { weights, noises, curves };
}

// The mixture of a Gaussian condition by quasi-random points of its q(h).
function gaussianMixture(model, prepared, condition) {
  const nodes = model.latentNodes,
    width = model.nLatent,
    n = nodes.length / width;
  const curves = Array.from({ length: n }, (_, p) => {
    const latent = Float64Array.from(
      { length: width },
      (_, q) => condition.latentMean[q] + condition.latentSd[q] * nodes[p * width + q],
    );
    return curveAt(model, prepared, latent);
  });
  return mixtureOf(new Float64Array(n).fill(1 / n), new Float64Array(n).fill(condition.noise), curves);
}

// Mean and standard deviation of the output in the user's units.
function outputMoments(model, mixture, includeNoise) {
  const { outputMean, outputScale } = model.scaling;
  const { moments } = transformOf(model);
  const n = mixture.curves[0].mean.length;
  const mean = new Float64Array(n),
    sd = new Float64Array(n);
  for (let i = 0; i < n; i++) {
    let first = 0;
    const parts = mixture.curves.map((curve, p) => {
      const m = curve.mean[i] * outputScale + outputMean;
      const v = (curve.variance[i] + (includeNoise ? mixture.noises[p] : 0)) * outputScale ** 2;
      return moments(m, v);
    });
    parts.forEach((part, p) => (first += mixture.weights[p] * part.m));
    let variance = 0;
    parts.forEach((part, p) => (variance += mixture.weights[p] * (part.v + (part.m - first) ** 2)));
    mean[i] = first;
    sd[i] = Math.sqrt(variance);
  }
  return { mean, sd };
}

// Ends of the central 95 % interval in the user's units: quantiles of the mixture, by bisection.
function outputInterval(model, mixture, includeNoise) {
  const { outputMean, outputScale } = model.scaling;
  const { backward } = transformOf(model);
  const n = mixture.curves[0].mean.length,
    size = mixture.curves.length;
  const ends = [new Float64Array(n), new Float64Array(n)];
  const means = new Float64Array(size),
    sds = new Float64Array(size);
  for (let i = 0; i < n; i++) {
    mixture.curves.forEach((curve, p) => {
      means[p] = curve.mean[i];
      sds[p] = Math.sqrt(curve.variance[i] + (includeNoise ? mixture.noises[p] : 0));
    });
    for (const side of [0, 1]) {
      const value = mixtureQuantile(side, mixture.weights, means, sds) * outputScale + outputMean;
      ends[side][i] = backward(value);
    }
  }
  return { lower: ends[0], upper: ends[1] };
}

function mixtureQuantile(side, weights, means, sds) {
  const z = side === 0 ? -Z95 : Z95,
    wanted = side === 0 ? 0.025 : 0.975;
  let lower = Infinity,
    upper = -Infinity;
  for (let p = 0; p < means.length; p++) {
    lower = Math.min(lower, means[p] + z * sds[p]);
    upper = Math.max(upper, means[p] + z * sds[p]);
  }
  for (let step = 0; step < QUANTILE_STEPS && upper > lower; step++) {
    const middle = (lower + upper) / 2;
    let below = 0;
    for (let p = 0; p < means.length; p++) below += weights[p] * normalBelow((middle - means[p]) / sds[p]);
    if (below < wanted) lower = middle;
    else upper = middle;
  }
  return (lower + upper) / 2;
}

// Predictions in the user's units: mean, sd and the ends of the 95 % interval.

function predictAtLatent(model, prepared, latent, includeNoise) {
  const curve = curveAt(model, prepared, Float64Array.from(latent));
  const mixture = mixtureOf([1], [model.noise.atLatent], [curve]);
  return { ...outputMoments(model, mixture, includeNoise), ...outputInterval(model, mixture, includeNoise) };
}

function predictCondition(model, prepared, condition, includeNoise) {
  if (condition.kind === "particles") return predictParticles(model, prepared, condition, includeNoise);
  if (condition.kind === "drawn") {
    const drawn = mixtureOf([1], [condition.noise], [drawnCurve(model, prepared, condition.curve)]);
    return { ...outputMoments(model, drawn, includeNoise), ...outputInterval(model, drawn, includeNoise) };
  }
  const mixture = gaussianMixture(model, prepared, condition);
  const interval = outputInterval(model, mixture, includeNoise);
  if (model.scaling.transform !== null || condition.moments === null)
    return { ...outputMoments(model, mixture, includeNoise), ...interval };
  const closedForm = mixtureOf([1], [condition.noise], [gaussianCurve(model, prepared, condition.moments)]);
  return { ...outputMoments(model, closedForm, includeNoise), ...interval };
}
