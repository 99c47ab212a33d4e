// Small helpers of all that is drawn. Names come from users: they are only ever set as text.

const DAY = 864e5;

function element(tag, text, attributes = {}) {
  const made = document.createElement(tag);
  if (text !== undefined) made.textContent = text;
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  return made;
}

function byId(id) {
  return document.getElementById(id);
}

function fixed(value, digits) {
  const text = value.toFixed(digits);
  return Number(text) === 0 ? text.replace("-", "") : text.replace("-", "−");
}

function formatNumber(value) {
  if (value === 0) return "0";
  const size = Math.abs(value);
  if (!Number.isFinite(value) || size >= 1e6 || size < 1e-3) return d3.format(".3~g")(value).replace("-", "−");
  const digits = Math.max(0, 3 - Math.floor(Math.log10(size)) - 1);
  return fixed(value, Math.min(digits, 4));
}

function formatInput(input, value) {
  return input.isDate ? new Date(value * DAY).toISOString().slice(0, 16).replace("T", " ") : formatNumber(value);
}

// A scale of an input: that of a logarithm is logarithmic, days since 1970 get ticks of dates.
function inputScale(input, range, margin) {
  const [low, high] = [input.low, input.high].map((end) => transformedInput(input, end));
  const width = (high - low || 1) * margin;
  const ends = [low - width, high + width].map((end) => restoredInput(input, end));
  if (!input.isDate) {
    const scale = numberScale(input.isLog, ends, range);
    return { ends, place: scale, value: (place) => scale.invert(place), axis: scale };
  }
  const scale = d3.scaleUtc(
    ends.map((end) => new Date(end * DAY)),
    range,
  );
  return { ends, place: (value) => scale(value * DAY), value: (place) => scale.invert(place) / DAY, axis: scale };
}

function numberScale(isLog, ends, range) {
  return isLog ? d3.scaleLog(ends, range) : d3.scaleLinear(ends, range);
}

// Axes below and on the left with a light grid, and their names.
function drawAxes(root, frame, bottom, left, names) {
  const { width, height, top, right, bottom: below, left: beside } = frame;
  // A logarithmic scale would write a tenth as 100m.
  const format = (scale) => (scale.base === undefined ? undefined : "~g");
  const axis = (make, transform, ticks, size) =>
    root
      .append("g")
      .attr("class", "axis")
      .attr("transform", transform)
      .call(make.ticks(ticks, format(make.scale())).tickSize(-size).tickPadding(8))
      .call((group) => group.select(".domain").remove());
  axis(
    d3.axisBottom(bottom),
    `translate(0,${height - below})`,
    Math.max(3, Math.floor(width / 90)),
    height - top - below,
  );
  if (left !== null)
    axis(d3.axisLeft(left), `translate(${beside},0)`, Math.max(3, Math.floor(height / 60)), width - beside - right);
  const name = (text, x, y, anchor) =>
    root
      .append("text")
      .attr("class", "axis name")
      .attr("x", x)
      .attr("y", y)
      .attr("text-anchor", anchor)
      .attr("fill", "currentColor")
      .text(text);
  name(names[0], width - right, height - 6, "end");
  if (left !== null) name(names[1], beside, top - 10, "start");
}

function slider(label, low, high, value, format, onInput) {
  const holder = element("label", label);
  const range = element("input", undefined, { type: "range", min: low, max: high, step: (high - low) / 200 || 1 });
  range.value = value;
  const output = element("output", format(value));
  range.addEventListener("input", () => {
    output.textContent = format(Number(range.value));
    onInput(Number(range.value));
  });
  holder.append(range, output);
  return holder;
}

function chooser(label, names, chosen, onChange) {
  const holder = element("label", label);
  const select = element("select");
  names.forEach((name, place) => {
    const option = element("option", name, { value: place });
    option.selected = place === chosen;
    select.append(option);
  });
  select.addEventListener("change", () => onChange(Number(select.value)));
  holder.append(select);
  return holder;
}

function shortened(name) {
  return name.length > 28 ? `${name.slice(0, 27)}…` : name;
}
