// Functions of the output that are modelled in its place, as in tables/scaling.py: of a Gaussian value with mean m and
// variance v, mean and variance of the output. Inputs are modelled as they are, or their logarithms.

const TRANSFORMS = {
  none: {
    forward: (output) => output,
    backward: (value) => value,
    takes: () => true,
    moments: (m, v) => ({ m, v }),
    resolution: (output, scale) => scale,
  },
  log: {
    forward: Math.log,
    backward: Math.exp,
    takes: (output) => output > 0,
    demand: "must be positive, since its logarithm is modelled",
    moments: (m, v) => ({ m: Math.exp(m + v / 2), v: Math.exp(2 * m + v) * Math.expm1(v) }),
    resolution: (output) => Math.abs(output),
  },
  sqrt: {
    forward: Math.sqrt,
    backward: (value) => Math.max(value, 0) ** 2,
    takes: (output) => output >= 0,
    demand: "must not be negative, since its square root is modelled",
    moments: momentsOfSquare,
    resolution: (output, scale) => scale * Math.max(scale, 2 * Math.sqrt(Math.abs(output))),
  },
};

// Of max(g, 0)²: the moments of g² less the parts below zero, or the parts above zero, whichever loses no digits.
function momentsOfSquare(m, v) {
  const score = m / Math.sqrt(v);
  const above = (a) => v * ((a * a + 1) * normalBelow(a) + a * normalDensity(a));
  const fourth = (a) => v * v * ((a ** 4 + 6 * a * a + 3) * normalBelow(a) + (a ** 3 + 5 * a) * normalDensity(a));
  if (score <= 0) {
    const mean = Math.max(above(score), 0);
    return { m: mean, v: Math.max(fourth(score), 0) - mean ** 2 };
  }
  const below = Math.max(above(-score), 0);
  const lost = Math.max(fourth(-score), 0) + below ** 2 - 2 * (m * m + v) * below;
  return { m: m * m + v - below, v: 4 * m * m * v + 2 * v * v - lost };
}

function transformedInput(input, value) {
  return input.isLog ? Math.log(value) : value;
}

function restoredInput(input, value) {
  return input.isLog ? Math.exp(value) : value;
}

// n values of an input from the lowest to the highest, evenly spaced as they are modelled.
function evenInputs(input, [low, high], n) {
  const [first, last] = [low, high].map((end) => transformedInput(input, end));
  return d3.range(n).map((i) => restoredInput(input, first + ((last - first) * i) / (n - 1)));
}

function transformOf(model) {
  return TRANSFORMS[model.scaling.transform ?? "none"];
}

// What is modelled, for an output of this name.
function modelled(model, output) {
  return model.scaling.transform === null ? output : `${model.scaling.transform} ${output}`;
}

// Heading of a column of noise, which is that of what is modelled.
function noiseHeading(model) {
  return model.scaling.transform === null ? "noise sd" : `noise sd (${model.scaling.transform})`;
}
