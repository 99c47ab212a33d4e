// What the page does: its state, and what follows from what people do.

const NOTHING_TYPED = "Its posterior appears in the latent space, its prediction beside it.";

function startPage() {
  const model = trainedModel(decodeDocument(JSON.parse(byId("data").textContent)));
  model.conditions.forEach((condition) => completeCondition(model, condition));
  const state = {
    axes: model.nLatent === 1 ? [0] : [0, 1],
    probe: new Float64Array(model.nLatent),
    selected: 0,
    active: "condition",
    includeNoise: false,
    inputAxis: 0,
    slice: model.inputs.map(({ middle }) => middle),
    observations: [],
    posterior: null,
    curve: null,
    reading: null,
    next: null,
  };
  let latents = null,
    curves = null,
    waiting = null;

  const actions = {
    select(number, scroll = false) {
      state.selected = number;
      state.active = "condition";
      byId("condition").value = number;
      latents.draw();
      curves.drawPoints();
      refresh();
      if (scroll) byId(model.hasLatents ? "latent-heading" : "curve-heading").scrollIntoView({ behavior: "smooth" });
    },
    moveProbe(latent) {
      state.probe = latent;
      state.active = "probe";
      latents.move();
      showSliders();
      if (waiting === null)
        waiting = requestAnimationFrame(() => {
          waiting = null;
          refresh();
        });
    },
    addObservation(input, output) {
      const box = byId("observations");
      box.value = `${box.value.trimEnd()}\n${observationLine(model, input, output)}`.trimStart();
      readObservations();
    },
    showNext() {
      const { value, before, after } = state.next;
      const quantity = modelled(model, model.outputName);
      byId("next").textContent =
        `Measure next at ${model.inputNames[state.inputAxis]} ${formatInput(model.inputs[state.inputAxis], value)}: the ` +
        `standard deviation of ${quantity} along this curve is ${formatNumber(before)}, and expected to be ` +
        `${formatNumber(after)} after it.`;
    },
    read(place) {
      state.reading = place;
      showReading();
    },
  };

  function refresh() {
    curves.update();
    showChips();
    showReading();
  }

  function redraw() {
    latents.draw();
    curves.draw();
    showChips();
    showReading();
  }

  const coordinates = (latent) => `(${Array.from(latent, (value) => fixed(value, 2)).join(", ")})`;

  function showChips() {
    const names = {
      condition: model.conditions[state.selected].name,
      probe: model.hasLatents ? `latent ${coordinates(state.probe)}` : "a condition never seen",
      new: "new condition",
    };
    const kinds = Object.keys(names).filter((kind) => kind !== "new" || state.posterior !== null);
    const chips = d3
      .select("#chips")
      .selectAll("button")
      .data(kinds)
      .join((enter) => {
        const button = enter.append("button").attr("type", "button");
        button.append("svg").attr("aria-hidden", "true").append("path").attr("d", "M1,6H21");
        button.append("span");
        return button;
      });
    chips
      .attr("class", (kind) => `of-${kind}`)
      .attr("aria-pressed", (kind) => kind === state.active)
      .on("click", (_, kind) => {
        state.active = kind;
        refresh();
      });
    chips.select("path").attr("class", (kind) => `line active of-${kind}`);
    chips.select("span").text((kind) => names[kind]);
  }

  function showReading() {
    const { grid, mean, lower, upper } = state.curve;
    const place = state.reading ?? Math.floor(grid.length / 2);
    const input = formatInput(model.inputs[state.inputAxis], grid[place]);
    byId("readout").textContent =
      `At ${model.inputNames[state.inputAxis]} ${input}: ${model.outputName} ${formatNumber(mean[place])}, 95 % from ` +
      `${formatNumber(lower[place])} to ${formatNumber(upper[place])}.`;
  }

  function readObservations() {
    const found = parseObservations(model, byId("observations").value);
    byId("posterior").replaceChildren();
    byId("next").textContent = "";
    if (found.error !== undefined || found.observations.length === 0)
      return forgetPosterior(found.observations ?? [], found.error ?? NOTHING_TYPED);
    byId("observations-message").textContent = "Computing …";
    setTimeout(() => {
      const inputs = found.observations.map(({ input }) => input);
      const outputs = found.observations.map(({ output }) => output);
      const posterior = inferCondition(model, inputs, outputs);
      if (posterior === null)
        return forgetPosterior([], "No latents explain these observations; are they of extreme size?");
      Object.assign(state, { observations: found.observations, posterior, active: "new" });
      showPosterior();
      redraw();
    }, 20);
  }

  function forgetPosterior(observations, message) {
    Object.assign(state, { observations, posterior: null });
    if (state.active === "new") state.active = "condition";
    byId("observations-message").textContent = message;
    redraw();
  }

  function showPosterior() {
    const { mean, sd } = latentMoments(state.posterior);
    const n = state.observations.length;
    const effective = 1 / d3.sum(state.posterior.weights, (weight) => weight * weight);
    byId("observations-message").textContent =
      `${n} observation${n === 1 ? "" : "s"}; posterior by ` +
      `${state.posterior.weights.length} weighted particles, worth ${effective.toFixed(0)} equal ones.`;
    const noise = d3.sum(state.posterior.noises, (value, p) => value * state.posterior.weights[p]);
    const shown = model.hasLatents ? mean : [];
    const rows = Array.from(shown, (value, q) => [`latent ${q + 1}`, formatNumber(value), formatNumber(sd[q])]);
    rows.push([noiseHeading(model), formatNumber(Math.sqrt(noise) * model.scaling.outputScale), ""]);
    if (model.hasOwn && model.noise.ownDeviation !== null) {
      const own = d3.sum(state.posterior.owns, (value, p) => value * state.posterior.weights[p]);
      rows.push(["own curve, sd relative to the usual", formatNumber(Math.sqrt(own)), ""]);
    }
    byId("posterior").append(
      tableOf([{ name: "" }, { name: "mean", number: true }, { name: "sd", number: true }], rows),
    );
  }

  const sliders = [];
  function showSliders() {
    sliders.forEach(({ q, range, output }) => {
      range.value = state.probe[q];
      output.textContent = formatNumber(state.probe[q]);
    });
  }

  // More than two latent dimensions: choose the axes, sliders for the others.
  function latentControls() {
    const holder = byId("latent-controls");
    holder.replaceChildren();
    sliders.length = 0;
    if (model.nLatent < 3 || !model.hasLatents) return;
    const names = model.coordinateNames;
    ["across", "up"].forEach((label, axis) =>
      holder.append(
        chooser(label, names, state.axes[axis], (q) => {
          if (state.axes[1 - axis] === q) state.axes[1 - axis] = state.axes[axis];
          state.axes[axis] = q;
          latentControls();
          latents.draw();
        }),
      ),
    );
    d3.range(model.nLatent)
      .filter((q) => !state.axes.includes(q))
      .forEach((q) => {
        const label = slider(names[q], -3, 3, state.probe[q], formatNumber, (value) => {
          const latent = Float64Array.from(state.probe);
          latent[q] = value;
          actions.moveProbe(latent);
        });
        sliders.push({ q, range: label.querySelector("input"), output: label.querySelector("output") });
        holder.append(label);
      });
  }

  // More than one input: choose the axis, sliders for the others.
  function curveControls() {
    const holder = byId("curve-controls");
    holder.replaceChildren();
    if (model.inputs.length < 2) return;
    holder.append(
      chooser("across", model.inputNames, state.inputAxis, (q) => {
        state.inputAxis = q;
        curveControls();
        curves.draw();
        showReading();
      }),
    );
    model.inputs.forEach((input, q) => {
      if (q === state.inputAxis) return;
      holder.append(
        slider(
          model.inputNames[q],
          ...[input.low, input.high, state.slice[q]].map((value) => transformedInput(input, value)),
          (value) => formatInput(input, restoredInput(input, value)),
          (value) => {
            state.slice[q] = restoredInput(input, value);
            curves.draw();
            showReading();
          },
        ),
      );
    });
  }

  function isDark() {
    const chosen = document.documentElement.dataset.theme;
    return chosen ? chosen === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  }

  function listen() {
    byId("condition").addEventListener("change", (event) => actions.select(Number(event.target.value)));
    for (const [id, value] of [
      ["band-function", false],
      ["band-observations", true],
    ])
      byId(id).addEventListener("change", () => {
        state.includeNoise = value;
        refresh();
      });
    let typing = null;
    byId("observations").addEventListener("input", () => {
      clearTimeout(typing);
      typing = setTimeout(readObservations, 400);
    });
    byId("clear").addEventListener("click", () => {
      byId("observations").value = "";
      readObservations();
    });
    const clicking = () => byId("curve").classList.toggle("clicking", byId("clicking").checked);
    byId("clicking").addEventListener("change", clicking);
    clicking();
    const nameTheme = () => (byId("theme").textContent = isDark() ? "Light" : "Dark");
    byId("theme").addEventListener("click", () => {
      document.documentElement.dataset.theme = isDark() ? "light" : "dark";
      nameTheme();
    });
    nameTheme();
    let width = innerWidth;
    addEventListener("resize", () => {
      if (innerWidth !== width) {
        width = innerWidth;
        redraw();
      }
    });
  }

  writeWords(model);
  latents = model.hasLatents ? latentView(model, state, actions) : { draw: () => {}, move: () => {} };
  curves = curveView(model, state, actions);
  latentControls();
  curveControls();
  fillTables(model, actions);
  listen();
  redraw();
  window.lvmogp = interfaceOf(model, state);
}

startPage();
