// The curves: of the condition shown, of the point that is dragged, of the new condition.

const MOST_OTHERS = 100;
const NO_MORE_POINTS = 400; // inducing pairs beyond which curves get fewer points

function curveView(model, state, actions) {
  const svg = d3.select("#curve");
  const nPoints = model.nInputs * model.nLatents > NO_MORE_POINTS ? 81 : 121;
  const ofConditions = new Map();
  const hasLogOutput = model.scaling.transform === "log";
  let prepared = null,
    preparedFor = null,
    grid = null,
    frame = null,
    x = null,
    y = null,
    layers = null;

  // Inputs along the chosen axis, the others as the sliders say.
  function prepareGrid() {
    const key = JSON.stringify([state.inputAxis, ...state.slice.filter((_, q) => q !== state.inputAxis)]);
    if (key === preparedFor) return;
    preparedFor = key;
    const { ends } = inputScale(model.inputs[state.inputAxis], [0, 1], 0.03);
    grid = evenInputs(model.inputs[state.inputAxis], ends, nPoints);
    prepared = prepare(model, grid.map(at));
    ofConditions.clear();
  }

  function at(value) {
    const input = Array.from(state.slice);
    input[state.inputAxis] = value;
    return input;
  }

  function predicted(kind) {
    if (kind === "probe") return predictAtLatent(model, prepared, state.probe, state.includeNoise);
    const key = kind === "new" ? state.posterior : state.selected;
    const cached = ofConditions.get(key) ?? new Map();
    ofConditions.set(key, cached);
    if (!cached.has(state.includeNoise)) {
      const condition = kind === "new" ? state.posterior : model.conditions[state.selected];
      cached.set(state.includeNoise, predictCondition(model, prepared, condition, state.includeNoise));
    }
    return cached.get(state.includeNoise);
  }

  // Mean curves of (some) other conditions, as a background.
  function otherCurves() {
    const step = Math.ceil(model.conditions.length / MOST_OTHERS);
    return model.conditions
      .filter((condition, number) => number % step === 0 && condition.kind !== "particles")
      .map((condition) => {
        if (condition.kind === "drawn")
          return grid.map((_, i) => toOutput(dot(drawnFeatures(model, prepared, i), condition.curve.weights)));
        const features =
          condition.moments?.mean ?? featuresOf(model.latentBasis, Float64Array.from(condition.latentMean));
        const weights = weightsOf(model, features, condition.own);
        return grid.map((_, i) => toOutput(dot(row(prepared.features, i, model.nFeatures), weights)));
      });
  }

  function toOutput(value) {
    return transformOf(model).backward(value * model.scaling.outputScale + model.scaling.outputMean);
  }

  function outputEnds(others) {
    const seen = model.conditions.flatMap(({ outputs }) => d3.extent(outputs)).filter((value) => value !== undefined);
    const ends = [
      ...seen,
      ...others.flatMap((values) => d3.extent(values)),
      ...state.observations.map(({ output }) => output),
    ];
    if (seen.length === 0 && others.length === 0) ends.push(toOutput(-2), toOutput(2));
    const [low, high] = d3.extent(ends);
    if (hasLogOutput) {
      const factor = (high > low ? high / low : Math.E) ** 0.07;
      return [low / factor, high * factor];
    }
    const margin = 0.07 * (high - low || 1);
    return [low >= 0 && low - margin < 0 ? 0 : low - margin, high + margin];
  }

  function draw() {
    prepareGrid();
    const width = svg.node().clientWidth || 400,
      height = Math.min(Math.max(300, 0.78 * width), 520);
    frame = { width, height, top: 26, right: 12, bottom: 44, left: 54 };
    svg.attr("height", height).attr("viewBox", `0 0 ${width} ${height}`);
    svg.selectAll("*").remove();
    const input = model.inputs[state.inputAxis];
    const others = otherCurves();
    x = inputScale(input, [frame.left, width - frame.right], 0.03);
    y = numberScale(hasLogOutput, outputEnds(others), [height - frame.bottom, frame.top]);
    drawAxes(svg, frame, x.axis, y, [model.inputNames[state.inputAxis], model.outputName]);
    svg
      .append("clipPath")
      .attr("id", "inside")
      .append("rect")
      .attr("x", frame.left)
      .attr("y", frame.top)
      .attr("width", width - frame.left - frame.right)
      .attr("height", height - frame.top - frame.bottom);
    const inside = svg.append("g").attr("clip-path", "url(#inside)");
    inside.append("g").selectAll("path").data(others).join("path").attr("class", "other").attr("d", lineThrough);
    layers = { bands: inside.append("g"), lines: inside.append("g"), points: inside.append("g") };
    layers.next = inside.append("g").attr("class", "next");
    layers.reader = inside
      .append("line")
      .attr("class", "reader")
      .attr("y1", frame.top)
      .attr("y2", height - frame.bottom)
      .attr("visibility", "hidden");
    drawPoints();
    drawNext();
    update();
  }

  const lineThrough = (values) =>
    d3.line(
      (_, i) => x.place(grid[i]),
      (value) => y(value),
    )(values);

  // Points fade with their distance from the slice that the sliders choose.
  function nearness(input) {
    let squared = 0;
    input.forEach((value, q) => {
      const [own, other] = [value, state.slice[q]].map((each) => transformedInput(model.inputs[q], each));
      if (q !== state.inputAxis) squared += ((own - other) / model.scaling.inputScale[q]) ** 2;
    });
    return 0.12 + 0.88 * Math.exp(-2 * squared);
  }

  function drawPoints() {
    const condition = model.conditions[state.selected],
      width = model.inputs.length;
    const data = Array.from(condition.outputs, (output, i) => ({ output, input: row(condition.inputs, i, width) }));
    layers.points.selectAll("*").remove();
    layers.points
      .selectAll("circle")
      .data(data)
      .join("circle")
      .attr("class", "datum")
      .attr("r", data.length > 100 ? 2.5 : 4.2)
      .attr("cx", ({ input }) => x.place(input[state.inputAxis]))
      .attr("cy", ({ output }) => y(output))
      .attr("opacity", ({ input }) => nearness(input));
    const size = d3.symbol(d3.symbolSquare, 80)();
    layers.points
      .append("g")
      .selectAll("path")
      .data(state.observations)
      .join("path")
      .attr("class", "observation")
      .attr("d", size)
      .attr("transform", ({ input, output }) => `translate(${x.place(input[state.inputAxis])},${y(output)})`)
      .attr("opacity", ({ input }) => nearness(input));
  }

  // Where a measurement of the new condition would tell most.
  function drawNext() {
    state.next = state.posterior === null ? null : nextMeasurement(model, state);
    if (state.next === null) return;
    const place = x.place(state.next.value);
    const isRight = place > (frame.left + frame.width - frame.right) / 2;
    layers.next
      .append("line")
      .attr("x1", place)
      .attr("x2", place)
      .attr("y1", frame.top)
      .attr("y2", frame.height - frame.bottom);
    layers.next
      .append("text")
      .attr("x", place + (isRight ? -6 : 6))
      .attr("y", frame.top + 14)
      .attr("text-anchor", isRight ? "end" : "start")
      .text("measure here next");
    actions.showNext();
  }

  // Bands and lines; all else stays while a point is dragged.
  function update() {
    const kinds = ["condition", "probe", "new"].filter((kind) => kind !== "new" || state.posterior !== null);
    const curves = new Map(kinds.map((kind) => [kind, predicted(kind)]));
    state.curve = { grid, ...curves.get(state.active) };
    const area = d3.area(
      (_, i) => x.place(grid[i]),
      (_, i) => y(state.curve.lower[i]),
      (_, i) => y(state.curve.upper[i]),
    );
    layers.bands
      .selectAll("path")
      .data([state.active])
      .join("path")
      .attr("class", (kind) => `band of-${kind}`)
      .attr("d", area(grid));
    layers.lines
      .selectAll("path")
      .data(kinds)
      .join("path")
      .attr("class", (kind) => `line of-${kind}${kind === state.active ? " active" : ""}`)
      .attr("d", (kind) => lineThrough(Array.from(curves.get(kind).mean)));
  }

  svg.on("pointermove", (event) => {
    const [first, last] = [grid[0], grid[nPoints - 1]].map(x.place);
    const place = Math.round(((d3.pointer(event, svg.node())[0] - first) / (last - first)) * (nPoints - 1));
    if (place < 0 || place >= nPoints) return;
    layers.reader.attr("visibility", null).attr("x1", x.place(grid[place])).attr("x2", x.place(grid[place]));
    actions.read(place);
  });
  svg.on("pointerleave", () => {
    layers.reader.attr("visibility", "hidden");
    actions.read(null);
  });
  svg.on("click", (event) => {
    const [across, up] = d3.pointer(event, svg.node());
    if (!byId("clicking").checked || across < frame.left || up > frame.height - frame.bottom) return;
    actions.addObservation(at(x.value(across)), y.invert(up));
  });
  return { draw, update, drawPoints };
}
