// The trained model: curves at given latents and of conditions, as in model/process.py and conditions/predictive.py.

const Z95 = 1.959963984540054;
const QUANTILE_STEPS = 40;
const ROUNDING = 10 * Number.EPSILON;

// From the decoded document, with what serves all predictions.
function trainedModel(document) {
  const { inputBasis, latentBasis } = document;
  const nInputs = inputBasis.nPoints,
    sizes = latentBasis.kernels.map(() => latentBasis.nPoints).concat(latentBasis.constant ? [1] : []);
  const termOf = sizes.flatMap((size, term) => new Array(size).fill(term)); // that of each latent feature
  return {
    ...document,
    nInputs,
    nTerms: sizes.length,
    nLatents: termOf.length,
    nKernels: inputBasis.kernels.length, // those of the terms, then that of conditions' own curves
    nFeatures: inputBasis.kernels.length * nInputs,
    termOf,
    hasLatents: latentBasis.kernels.length > 0,
    hasOwn: inputBasis.kernels.length > sizes.length,
    form: covarianceForm(document.covariance, nInputs, termOf),
    meanByLatent: transposed(document.mean, termOf.length),
  };
}

// L⁻¹k_u(x) for one point in standardised units, under each kernel; the constant's feature is 1.
function featuresOf(basis, point) {
  const n = basis.nPoints,
    width = point.length,
    nKernels = basis.kernels.length;
  const values = new Float64Array(nKernels * n + (basis.constant ? 1 : 0)).fill(1);
  basis.kernels.forEach((kernel, k) => {
    const own = row(values, k, n);
    for (let i = 0; i < n; i++) own[i] = covarianceOfPoints(kernel, row(basis.points, i, width), point);
    whiten(row(basis.factors, k, n * n), n, own);
  });
  return values;
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
  const features = new Float64Array(points.length * model.nFeatures);
  points.forEach((point, i) => features.set(featuresOf(model.inputBasis, point), i * model.nFeatures));
  return {
    n: points.length,
    points,
    features,
    prior: Float64Array.from(points.flatMap((point) => Array.from(priorBetween(model, point, point)))),
    shape: shapeOf(model, features, points.length),
    grams: model.form.own(features, points.length, model.nFeatures),
    ofConditions: new Map(),
  };
}

// Covariances of two points under each input kernel.
function priorBetween(model, first, second) {
  return Float64Array.from(model.inputBasis.kernels, (kernel) => covarianceOfPoints(kernel, first, second));
}

// Rows (Mᵀa)ᵀ, a being the features of the term of each column of M.
function shapeOf(model, features, n) {
  const { nInputs, nLatents, nFeatures, termOf } = model;
  if (nFeatures === nInputs) return timesTransposed(features, model.meanByLatent, nInputs);
  const shape = new Float64Array(n * nLatents);
  for (let i = 0; i < n; i++) {
    const own = row(features, i, nFeatures);
    for (let j = 0; j < nLatents; j++)
      shape[i * nLatents + j] = dot(row(model.meanByLatent, j, nInputs), row(own, termOf[j], nInputs));
  }
  return shape;
}

// Sums over the latent features of each term.
function byTerm(model, value) {
  const sums = new Float64Array(model.nTerms);
  model.termOf.forEach((term, j) => (sums[term] += value(j)));
  return sums;
}

// c(h), and what multiplies each input kernel in the prior of one condition: k_H(h, h) of each term, ρ² of its own curve.
function latentPoint(model, latent, own) {
  const features = featuresOf(model.latentBasis, latent);
  const scale = new Float64Array(model.nKernels).fill(1);
  model.latentBasis.kernels.forEach((kernel, t) => (scale[t] = covarianceOfPoints(kernel, latent, latent)));
  if (model.hasOwn) scale[model.nTerms] = own;
  return { features, products: model.form.products(features), scale };
}

// Prepared inputs as they are for a trained condition with a curve of its own (equation 60). Given the weights w of all
// else, its own are N(offset − Jw, ρ²I − R) along some directions. The curve is then that of features ã = a − Jᵀa_o, but
// for an offset and for what the two kinds of features explain of the prior.
function preparedFor(model, prepared, condition) {
  const { own } = condition;
  if (!own) return prepared;
  if (prepared.ofConditions.has(condition)) return prepared.ofConditions.get(condition);
  const { n } = prepared,
    { nInputs, nTerms, nFeatures } = model,
    rank = own.offset.length,
    width = nTerms * nInputs;
  const features = Float64Array.from(prepared.features);
  const gained = new Float64Array(n * nTerms), // |ã|² − |a|² of each term
    offset = new Float64Array(n),
    reduction = new Float64Array(n);
  for (let i = 0; i < n; i++) {
    const all = row(features, i, nFeatures);
    const along = timesTransposed(own.directions, row(all, nTerms, nInputs), nInputs);
    offset[i] = dot(along, own.offset);
    for (let r = 0; r < rank; r++) reduction[i] += along[r] * dot(row(own.reduction, r, rank), along);
    for (let t = 0; t < nTerms; t++) gained[i * nTerms + t] -= dot(row(all, t, nInputs), row(all, t, nInputs));
    for (let r = 0; r < rank; r++) for (let f = 0; f < width; f++) all[f] -= along[r] * own.gain[r * width + f];
    for (let t = 0; t < nTerms; t++) gained[i * nTerms + t] += dot(row(all, t, nInputs), row(all, t, nInputs));
  }
  const found = {
    ...prepared,
    features,
    shape: shapeOf(model, features, n),
    grams: model.form.own(features, n, nFeatures),
    known: { gained, offset, reduction },
  };
  prepared.ofConditions.set(condition, found);
  return found;
}

// Mean weights of all input features for latent features c, of a condition with a curve of its own if it has one.
function weightsOf(model, features, own) {
  const { nInputs, nTerms } = model;
  const weights = new Float64Array(model.nFeatures);
  model.termOf.forEach((term, j) => {
    const column = row(model.meanByLatent, j, nInputs);
    for (let x = 0; x < nInputs; x++) weights[term * nInputs + x] += features[j] * column[x];
  });
  if (!own) return weights;
  const others = weights.slice(0, nTerms * nInputs);
  own.offset.forEach((offset, r) => {
    const along = offset - dot(row(own.gain, r, others.length), others);
    for (let x = 0; x < nInputs; x++) weights[others.length + x] += along * own.directions[r * nInputs + x];
  });
  return weights;
}

// Mean and variance of f at prepared inputs for one latent, in standardised units; ρ² is that of its own curve.
function curveAt(model, prepared, latent, own) {
  const at = latentPoint(model, latent, own);
  const squares = prepared.known && byTerm(model, (j) => at.features[j] ** 2);
  const mean = new Float64Array(prepared.n),
    variance = new Float64Array(prepared.n);
  for (let i = 0; i < prepared.n; i++) {
    const prior = dot(at.scale, row(prepared.prior, i, model.nKernels));
    mean[i] = dot(row(prepared.shape, i, model.nLatents), at.features);
    let left = prior - dot(row(prepared.grams, i, model.form.size), at.products);
    if (prepared.known) {
      mean[i] += prepared.known.offset[i];
      left += dot(squares, row(prepared.known.gained, i, model.nTerms)) - prepared.known.reduction[i];
    }
    variance[i] = Math.max(left, ROUNDING * prior);
  }
  return { mean, variance };
}

// Closed-form moments of a condition whose latents are Gaussian (equations 15 to 17).
function gaussianCurve(model, prepared, condition) {
  const { moments, own } = condition;
  const scale = Float64Array.from([...moments.priorVariance, ...(model.hasOwn ? [own.scale] : [])]);
  const n = model.nLatents;
  const second = new Float64Array(n * n);
  for (let j = 0, place = 0; j < n; j++)
    for (let k = j; k < n; k++, place++) second[j * n + k] = second[k * n + j] = moments.second[place];
  const products = model.form.ofSecondMoment(second);
  const squares = prepared.known && byTerm(model, (j) => second[j * n + j]); // tr T of each term
  const mean = new Float64Array(prepared.n),
    variance = new Float64Array(prepared.n);
  for (let i = 0; i < prepared.n; i++) {
    const shape = row(prepared.shape, i, n);
    const prior = dot(scale, row(prepared.prior, i, model.nKernels));
    mean[i] = dot(shape, moments.mean);
    let ofLatents = -(mean[i] ** 2); // uᵀ(T − c̄c̄ᵀ)u, u = Mᵀa
    for (let j = 0; j < n; j++) ofLatents += shape[j] * dot(row(second, j, n), shape);
    let left = prior + ofLatents - dot(row(prepared.grams, i, model.form.size), products);
    if (prepared.known) {
      mean[i] += prepared.known.offset[i];
      left += dot(squares, row(prepared.known.gained, i, model.nTerms)) - prepared.known.reduction[i];
    }
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
    const features = drawnFeatures(model, prepared, i);
    const prior = dot(model.drawnScale, row(prepared.prior, i, model.nKernels));
    mean[i] = dot(features, curve.weights);
    let left = prior;
    for (let j = 0; j < n; j++) left += features[j] * dot(row(curve.spread, j, n), features);
    variance[i] = Math.max(left, ROUNDING * prior);
  }
  return { mean, variance };
}

// Of the kernel by which curves of draws are interpolated: the one kernel of inputs, or the sum of all.
function drawnFeatures(model, prepared, i) {
  if (model.drawnBasis === null) return row(prepared.features, i, model.nInputs);
  prepared.drawn ??= prepared.points.map((point) => featuresOf(model.drawnBasis, point));
  return prepared.drawn[i];
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
    return curveAt(model, prepared, latent, condition.own?.scale);
  });
  // Log-normal noise of the given mean.
  const factors = model.noiseNodes.map((node) => Math.exp(condition.noiseDeviation * node));
  const mean = factors.reduce((total, factor) => total + factor, 0) / n;
  const noises = factors.map((factor) => (condition.noise * factor) / mean);
  return mixtureOf(new Float64Array(n).fill(1 / n), noises, curves);
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
  const curve = curveAt(model, prepared, Float64Array.from(latent), model.noise.ownAtLatent);
  const mixture = mixtureOf([1], [model.noise.atLatent], [curve]);
  return { ...outputMoments(model, mixture, includeNoise), ...outputInterval(model, mixture, includeNoise) };
}

function predictCondition(model, prepared, condition, includeNoise) {
  if (condition.kind === "particles") return predictParticles(model, prepared, condition, includeNoise);
  if (condition.kind === "drawn") {
    const drawn = mixtureOf([1], [condition.noise], [drawnCurve(model, prepared, condition.curve)]);
    return { ...outputMoments(model, drawn, includeNoise), ...outputInterval(model, drawn, includeNoise) };
  }
  const own = preparedFor(model, prepared, condition);
  const mixture = gaussianMixture(model, own, condition);
  const interval = outputInterval(model, mixture, includeNoise);
  if (model.scaling.transform !== null || condition.moments === null)
    return { ...outputMoments(model, mixture, includeNoise), ...interval };
  const closedForm = mixtureOf([1], [condition.noise], [gaussianCurve(model, own, condition)]);
  return { ...outputMoments(model, closedForm, includeNoise), ...interval };
}
