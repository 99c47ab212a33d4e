// The latent space: conditions with their uncertainty, the point that is dragged, the particles of a new condition.

const MOST_LABELS = 60;
const MANY = 150;
const ROW = 24;

function latentView(model, state, actions) {
  const svg = d3.select("#latent");
  const isLine = model.nLatent === 1;
  let frame = null,
    across = null,
    up = null,
    probeMark = null;

  function layout() {
    const width = svg.node().clientWidth || 400;
    const rows = isLine ? Math.min(model.conditions.length, MOST_LABELS) : 0;
    const height = isLine ? Math.max(300, Math.min(640, rows * ROW + 150)) : Math.min(width, 520);
    frame = { width, height, top: isLine ? 14 : 26, right: 12, bottom: 44, left: isLine ? 12 : 40 };
    svg.attr("height", height).attr("viewBox", `0 0 ${width} ${height}`);
  }

  // One unit is as long across as up, since the prior is the same in all directions.
  function scales() {
    const extent = (q) => {
      const ends = model.conditions.flatMap(({ latentMean, latentSd }) => [
        latentMean[q] - 2.2 * latentSd[q],
        latentMean[q] + 2.2 * latentSd[q],
      ]);
      return [Math.min(-2.4, ...ends), Math.max(2.4, ...ends)];
    };
    const inner = [frame.width - frame.left - frame.right, frame.height - frame.top - frame.bottom];
    const [x, y] = state.axes.map(extent);
    const unit = isLine ? (x[1] - x[0]) / inner[0] : Math.max((x[1] - x[0]) / inner[0], (y[1] - y[0]) / inner[1]);
    const around = ([low, high], length) => [(low + high - unit * length) / 2, (low + high + unit * length) / 2];
    across = d3.scaleLinear(around(x, inner[0]), [frame.left, frame.width - frame.right]);
    up = isLine ? null : d3.scaleLinear(around(y, inner[1]), [frame.height - frame.bottom, frame.top]);
  }

  function draw() {
    layout();
    scales();
    svg.selectAll("*").remove();
    drawAxes(
      svg,
      frame,
      across,
      up,
      state.axes.map((q) => model.coordinateNames[q]),
    );
    if (!isLine)
      svg
        .append("ellipse")
        .attr("class", "zero")
        .attr("cx", across(0))
        .attr("cy", up(0))
        .attr("rx", across(2) - across(0))
        .attr("ry", up(0) - up(2));
    const selected = model.conditions[state.selected];
    svg
      .append("clipPath")
      .attr("id", "in-latent")
      .append("rect")
      .attr("x", frame.left)
      .attr("y", frame.top)
      .attr("width", frame.width - frame.left - frame.right)
      .attr("height", frame.height - frame.top - frame.bottom);
    if (selected.kind === "particles") drawParticles(selected, "var(--condition)");
    if (state.posterior !== null) isLine ? drawDensity(state.posterior) : drawParticles(state.posterior, "var(--new)");
    if (isLine) drawProbe(); // below the names
    isLine ? drawLine() : drawPlane();
    if (!isLine) drawProbe();
    move();
  }

  function groups() {
    return svg
      .append("g")
      .selectAll("g")
      .data(model.conditions.map((condition, number) => ({ condition, number })))
      .join("g")
      .attr("class", ({ number }) => (number === state.selected ? "selected" : null))
      .attr("data-condition", ({ number }) => number);
  }

  function marker(group, place) {
    group
      .append("path")
      .attr("class", "point")
      .attr("transform", (item) => `translate(${place(item)})`)
      .attr("d", ({ condition }) =>
        d3.symbol(condition.added ? d3.symbolSquare : d3.symbolCircle, model.conditions.length > MANY ? 30 : 75)(),
      )
      .append("title")
      .text(({ condition }) => condition.name);
  }

  function drawPlane() {
    const [p, q] = state.axes;
    const group = groups();
    group
      .append("ellipse")
      .attr("class", "ellipse")
      .attr("cx", ({ condition }) => across(condition.latentMean[p]))
      .attr("cy", ({ condition }) => up(condition.latentMean[q]))
      .attr("rx", ({ condition }) => across(2 * condition.latentSd[p]) - across(0))
      .attr("ry", ({ condition }) => up(0) - up(2 * condition.latentSd[q]));
    const place = ({ condition }) => [across(condition.latentMean[p]), up(condition.latentMean[q])];
    marker(group, place);
    label(group, place);
    group.filter(".selected").raise();
  }

  // Labels beside their points; one that would cover another is left out unless its condition is selected.
  function label(group, place) {
    const taken =
      model.conditions.length <= 200
        ? model.conditions.map((condition, number) => {
            const [x, y] = place({ condition, number });
            return [x - 5, y - 5, x + 5, y + 5];
          })
        : [];
    const order = group
      .data()
      .slice()
      .sort((a, b) => (b.number === state.selected) - (a.number === state.selected));
    const spots = new Map();
    for (const item of order) {
      if (model.conditions.length > MOST_LABELS && item.number !== state.selected) continue;
      const [x, y] = place(item),
        width = 6.6 * shortened(item.condition.name).length;
      const boxes = [
        { x: x + 9, y: y + 4, anchor: "start", box: [x + 7, y - 7, x + 9 + width, y + 7] },
        { x: x - 9, y: y + 4, anchor: "end", box: [x - 9 - width, y - 7, x - 7, y + 7] },
        { x, y: y - 10, anchor: "middle", box: [x - width / 2, y - 22, x + width / 2, y - 7] },
        { x, y: y + 19, anchor: "middle", box: [x - width / 2, y + 7, x + width / 2, y + 22] },
      ].filter(({ box }) => box[0] > 0 && box[2] < frame.width);
      const free = boxes.find(({ box: [a, b, c, d] }) =>
        taken.every(([e, f, g, h]) => c < e || g < a || d < f || h < b),
      );
      const spot = free ?? (item.number === state.selected ? boxes[0] : undefined);
      if (spot === undefined) continue;
      taken.push(spot.box);
      spots.set(item.number, spot);
    }
    group
      .filter(({ number }) => spots.has(number))
      .append("text")
      .attr("class", "label")
      .attr("x", ({ number }) => spots.get(number).x)
      .attr("y", ({ number }) => spots.get(number).y)
      .attr("text-anchor", ({ number }) => spots.get(number).anchor)
      .text(({ condition }) => shortened(condition.name));
  }

  // One latent dimension: a row a condition, in the order of their latents.
  function drawLine() {
    const order = model.conditions
      .map((_, number) => number)
      .sort((i, j) => model.conditions[i].latentMean[0] - model.conditions[j].latentMean[0]);
    const rank = new Map(order.map((number, place) => [number, place]));
    const bottom = frame.height - frame.bottom - 62;
    const height = d3.scalePoint(order, [bottom, frame.top + 10]);
    const group = groups();
    const ends = ({ condition }, side) => across(condition.latentMean[0] + side * 2 * condition.latentSd[0]);
    group
      .append("line")
      .attr("class", "bar")
      .attr("x1", (item) => ends(item, -1))
      .attr("x2", (item) => ends(item, 1))
      .attr("y1", ({ number }) => height(number))
      .attr("y2", ({ number }) => height(number));
    marker(group, (item) => [across(item.condition.latentMean[0]), height(item.number)]);
    const middle = model.conditions.length / 2;
    group
      .filter(({ number }) => model.conditions.length <= MOST_LABELS || number === state.selected)
      .append("text")
      .attr("class", "label")
      .attr("text-anchor", ({ number }) => (rank.get(number) < middle ? "start" : "end"))
      .attr("x", (item) =>
        rank.get(item.number) < middle
          ? Math.max(ends(item, 1), across(item.condition.latentMean[0]) + 5) + 7
          : Math.min(ends(item, -1), across(item.condition.latentMean[0]) - 5) - 7,
      )
      .attr("y", ({ number }) => height(number) + 4)
      .text(({ condition }) => shortened(condition.name));
  }

  function drawParticles(condition, colour) {
    if (isLine) return;
    const most = Math.max(...condition.weights);
    const [p, q] = state.axes;
    const shown = Array.from(condition.weights, (weight, number) => ({
      share: weight / most,
      latent: condition.latents[number],
    })).filter(({ share }) => share > 1e-3);
    svg
      .append("g")
      .attr("clip-path", "url(#in-latent)")
      .selectAll("circle")
      .data(shown)
      .join("circle")
      .attr("class", "particle")
      .attr("r", 3)
      .attr("cx", ({ latent }) => across(latent[p]))
      .attr("cy", ({ latent }) => up(latent[q]))
      .attr("fill", colour)
      .attr("fill-opacity", ({ share }) => 0.6 * Math.sqrt(share));
  }

  // The weights of the particles, smoothed, as a curve above the axis.
  function drawDensity(condition) {
    const { sd } = latentMoments(condition);
    const width = Math.max(0.35 * sd[0] * condition.weights.length ** -0.2 * 2, 1e-9);
    const places = d3.range(frame.left, frame.width - frame.right, 2);
    const heights = places.map((place) => {
      const h = across.invert(place);
      return d3.sum(
        condition.weights,
        (weight, p) => weight * Math.exp(-(((h - condition.latents[p][0]) / width) ** 2) / 2),
      );
    });
    const base = frame.height - frame.bottom,
      most = d3.max(heights);
    svg
      .append("path")
      .attr("class", "density")
      .attr(
        "d",
        d3
          .area()
          .x((_, i) => places[i])
          .y0(base)
          .y1((value) => base - (48 * value) / most)(heights),
      );
  }

  function drawProbe() {
    probeMark = svg.append("g").attr("class", "probe");
    const shape = isLine
      ? `M0,${frame.top}V${frame.height - frame.bottom}`
      : "M-13,0H-5M5,0H13M0,-13V-5M0,5V13M7,0A7,7 0 1 1 -7,0A7,7 0 1 1 7,0";
    if (!isLine) probeMark.append("path").attr("class", "halo").attr("d", shape);
    probeMark.append("path").attr("d", shape);
  }

  function move() {
    const [p, q] = state.axes;
    probeMark.attr("transform", `translate(${across(state.probe[p])},${isLine ? 0 : up(state.probe[q])})`);
  }

  function placeProbe(event) {
    const [x, y] = d3.pointer(event, svg.node());
    const inside = (scale, value) =>
      Math.max(d3.min(scale.domain()), Math.min(d3.max(scale.domain()), scale.invert(value)));
    const latent = Float64Array.from(state.probe);
    latent[state.axes[0]] = inside(across, x);
    if (!isLine) latent[state.axes[1]] = inside(up, y);
    actions.moveProbe(latent);
  }

  const conditionAt = (event) => {
    const holder = event.target.closest("[data-condition]");
    return holder === null ? null : Number(holder.getAttribute("data-condition"));
  };
  let dragging = false;
  svg.on("pointerdown", (event) => {
    if (event.button !== 0) return;
    svg.node().setPointerCapture(event.pointerId);
    dragging = true;
    const number = conditionAt(event);
    if (number === null) placeProbe(event);
    else actions.select(number);
  });
  svg.on("pointermove", (event) => {
    if (dragging && (event.movementX || event.movementY)) placeProbe(event);
    else if (!dragging && event.pointerType === "mouse") {
      const number = conditionAt(event);
      if (number !== null && (number !== state.selected || state.active !== "condition")) actions.select(number);
    }
  });
  svg.on("pointerup pointercancel", () => (dragging = false));
  svg.on("keydown", (event) => {
    const moves = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowDown: [1, -1], ArrowUp: [1, 1] };
    if (event.key in moves) {
      const [axis, sign] = isLine ? [0, moves[event.key][1]] : moves[event.key];
      const latent = Float64Array.from(state.probe);
      latent[state.axes[axis]] += sign * (event.shiftKey ? 0.5 : 0.1);
      actions.moveProbe(latent);
    } else if (event.key === "Home") actions.moveProbe(new Float64Array(model.nLatent));
    else return;
    event.preventDefault();
  });
  return { draw, move };
}
