(() => {
  const { figures, draw, start, choice, element, json, plain, colour, csv, save } = Figures;
  const reading = json("reading");
  const { pieces, models, chunkSize } = reading;
  const MEASURES = ["mean", "sum"];
  const STRONGEST = 55;  // per cent of a series' colour behind a token: text on it stays readable
  const visible = (text) => text.replaceAll("\n", "↵").replaceAll("\t", "⇥") || "·";
  const mean = (rows) => rows[0].map((_, i) => rows.reduce((total, row) => total + row[i], 0) / rows.length);
  const chosen = { text: models.map(() => [0, 0]), predictor: models.map(() => [0, 0]) };  // layer and head; 0: the mean of all
  let measure = "mean";

  // Attention received in the layer and head that are chosen.
  const counted = (sums) => (measure === "sum" ? sums : sums.map((value, i) => value / (sums.length - i)));
  const received = (index, part) => {
    const [layer, head] = chosen[part][index];
    const layers = part === "text" ? models[index].layers : models[index].predictor;
    const of = (heads) => (head === 0 ? mean(heads) : heads[head - 1]);
    return counted(layer === 0 ? mean(layers.map(of)) : of(layers[layer - 1]));
  };
  const minus = (some, others) => some.map((value, i) => (value === null || others[i] === null ? null : value - others[i]));
  const withoutFirst = () => element("sink").checked;
  const largest = (rows) => Math.max(1e-12, ...rows.flatMap((row) => row.filter((value, i) => value !== null && (i > 0 || !withoutFirst())).map(Math.abs)));

  // The text as a row of tokens; `chunk` tokens between two thin lines.
  const write = (id, chunk) => element(id).replaceChildren(...pieces.map((piece, index) => {
    const token = document.createElement("span");
    token.dataset.index = String(index);
    token.textContent = piece.replaceAll("\n", "↵\n") || "·";
    if (index > 0 && index % chunk === 0) token.classList.add("start");
    if (index === 0 && reading.hasStart) token.classList.add("special");
    return token;
  }));
  const tint = (colour, share) => `color-mix(in srgb, ${colour} ${(STRONGEST * Math.min(1, share)).toFixed(1)}%, transparent)`;
  const digits = (value) => (Math.abs(value) >= 1 ? value.toFixed(2) : value.toPrecision(2));
  const scale = (id, low, high, from, to) => {
    let bar = element(id).nextElementSibling;
    while (!bar.classList.contains("scale")) bar = bar.nextElementSibling;
    const [first, ramp, last] = bar.children;
    [first.textContent, last.textContent] = [low, high];
    ramp.style.background = `linear-gradient(to right, ${from}, transparent 50%, ${to})`;
    if (from === null) ramp.style.background = `linear-gradient(to right, transparent, ${to})`;
  };
  const paint = (id, values, most, colour) => {
    [...element(id).children].forEach((token, i) => {
      token.style.background = tint(colour, values[i] / most);
      token.classList.toggle("beyond", values[i] > most * 1.000001);
    });
    scale(id, "0", digits(most), null, tint(colour, 1));
  };
  // Differences: `better` is the sign that is good, or 0 where neither is.
  const paintSigned = (id, values, most, better, words) => {
    const [negative, positive] = better > 0 ? ["var(--more)", "var(--less)"] : ["var(--less)", "var(--more)"];
    [...element(id).children].forEach((token, i) => {
      const value = values[i];
      token.style.background = value === null ? "" : tint(value < 0 ? negative : positive, Math.abs(value) / most);
      token.classList.toggle("none", value === null);
      token.classList.toggle("worse", better !== 0 && value !== null && value * better < -0.02 * most);
      token.classList.toggle("beyond", value !== null && Math.abs(value) > most * 1.000001);
    });
    scale(id, `−${digits(most)} ${words[0]}`, `+${digits(most)} ${words[1]}`, tint(negative, 1), tint(positive, 1));
  };
  const paintReceived = () => {
    const values = models.map((_, index) => received(index, "text"));
    const most = largest(values);
    const differences = values.slice(1).map((some) => minus(some, values[0]));
    const widest = largest(differences);
    values.forEach((some, index) => paint(`received-${index}`, some, most, `var(--series-${index})`));
    differences.forEach((some, i) => paintSigned(`difference-${i + 1}`, some, widest, 0, ["less", "more"]));
  };
  const lens = (model) => (model.without === null ? null : minus(model.without, model.nats));
  const paintLosses = () => {
    const lenses = models.map(lens);
    const known = lenses.filter((some) => some !== null);
    lenses.forEach((some, index) => some && paintSigned(`lens-${index}`, some, largest(known), 1, ["hurt", "helped"]));
    const differences = models.slice(1).map((model) => minus(model.nats, models[0].nats));
    differences.forEach((some, i) => paintSigned(`loss-${i + 1}`, some, largest(differences), -1, ["better", "worse"]));
  };

  // Bars: by chunk, a trace for each model.
  const textOf = (chunk, size) => visible(pieces.slice(chunk * size, (chunk + 1) * size).join("")).trim();
  const cropped = (text) => (text.length > reading.cropped ? `${text.slice(0, reading.cropped - 1)}…` : text);
  const hover = (index, chunk, value, size, [first, values]) => {
    const against = index === first || !values[chunk] ? "" : ` (${(100 * (value / values[chunk] - 1)).toFixed(1)}% against ${models[first].name})`;
    return `${models[index].name}, chunk ${chunk} “${textOf(chunk, size)}”: ${value.toPrecision(3)}${against}`;
  };
  const bars = (name, rows, sizeOf) => {
    const size = sizeOf(rows[0][0]);
    const longest = Math.max(...rows.map(([, values]) => values.length));
    const indices = [...Array(longest).keys()];
    figures[name].data = rows.map(([index, values]) => ({
      type: "bar", name: plain(models[index].name), meta: { series: index }, showlegend: models.length > 1, x: [...values.keys()], y: values,
      customdata: values.map((value, chunk) => plain(hover(index, chunk, value, sizeOf(index), rows[0]))), hovertemplate: "%{customdata}<extra></extra>",
    }));
    const most = Math.max(1e-12, ...rows.flatMap(([, values]) => values.filter((_, i) => i > 0 || !withoutFirst() || longest === 1)));
    const named = longest <= reading.namedChunks && innerWidth >= 500;
    const beyond = rows.filter(([, values]) => values[0] > 1.12 * most);
    Object.assign(figures[name].layout, {
      annotations: beyond.length === 0 ? [] : [{
        x: 0.6, y: 1, yref: "paper", xanchor: "left", yanchor: "top", showarrow: false, align: "left",
        bgcolor: colour("--paper"), opacity: 0.9,
        text: `beyond the scale: ${beyond.map(([index, values]) => `${plain(models[index].name)} ${digits(values[0])}`).join(", ")}`,
      }],
      xaxis: {
        ...figures[name].layout.xaxis, type: "linear", range: [-0.6, longest - 0.4], zeroline: false, showgrid: false,
        ...(named ? { tickmode: "array", tickvals: indices, ticktext: indices.map((chunk) => plain(`${chunk}: ${cropped(textOf(chunk, size))}`)), tickangle: longest > 4 ? -40 : 0, ticklabeloverflow: "allow" } : { tickmode: "auto" }),
        title: { text: named ? "" : `chunk of ${size} tokens` },
      },
      yaxis: { ...figures[name].layout.yaxis, range: [0, 1.12 * most] },
    });
  };
  const prepareChunks = () => bars("chunks", models.map((_, index) => {
    const sums = Array(Math.ceil(pieces.length / chunkSize)).fill(0);
    received(index, "text").forEach((value, i) => { sums[Math.floor(i / chunkSize)] += value; });
    return [index, sums];
  }), () => chunkSize);
  const predicting = [...models.keys()].filter((index) => models[index].predictor.length > 0);
  const preparePredictor = () => {
    if (predicting.length) bars("predictor", predicting.map((index) => [index, received(index, "predictor")]), (index) => models[index].predictorChunk);
  };
  const prepare = () => { paintReceived(); prepareChunks(); preparePredictor(); };
  const update = () => { prepare(); Object.keys(figures).forEach(draw); };

  // Controls.
  const fill = (select, count, what) => {
    const names = [count > 1 ? `mean of ${count}` : `the only ${what}`, ...(count > 1 ? Array.from({ length: count }, (_, i) => `${i + 1}`) : [])];
    select.replaceChildren(...names.map((name, i) => new Option(name, String(i))));
  };
  const addChoices = (part, index) => {
    const layers = part === "text" ? models[index].layers : models[index].predictor;
    const [layer, head] = ["layer", "head"].map((what) => element(`${part}-${what}-${index}`));
    fill(layer, layers.length, "layer");
    fill(head, Math.min(...layers.map((heads) => heads.length)), "head");
    for (const [i, select] of [layer, head].entries()) {
      select.addEventListener("change", () => { chosen[part][index][i] = Number(select.value); update(); });
    }
  };
  const description = (index) => {
    const numbers = models.map((model, i) => {
      const parts = [`received ${received(i, "text")[index].toPrecision(3)}`];
      if (model.nats[index] !== null) parts.push(`loss ${model.nats[index].toFixed(3)}`);
      const difference = lens(model)?.[index] ?? null;
      if (difference !== null) parts.push(`lens ${difference < 0 ? "−" : "+"}${Math.abs(difference).toFixed(3)}`);
      return `${model.name}: ${parts.join(", ")}`;
    });
    return `${index} “${visible(pieces[index])}”, chunk ${Math.floor(index / chunkSize)}. ${numbers.join("; ")}`;
  };
  const point = (event) => {
    const index = event.target.dataset?.index;
    if (index === undefined) return;
    document.querySelectorAll(".text .here").forEach((token) => token.classList.remove("here"));
    document.querySelectorAll(`.text [data-index="${index}"]`).forEach((token) => token.classList.add("here"));
    element("readout").textContent = description(Number(index));
    element("readout").hidden = false;
  };
  const download = () => {
    const rows = [];
    for (const model of models) {
      for (const part of ["layers", "predictor"]) {
        model[part].forEach((heads, layer) => heads.forEach((sums, head) => sums.forEach((sum, i) => rows.push(
          [model.name, part, layer + 1, head + 1, i, part === "layers" ? pieces[i] : "", sum, Number((sum / (sums.length - i)).toPrecision(6))],
        ))));
      }
    }
    save("attention", csv(["model", "part", "layer", "head", "position", "token", "sum", "mean"], rows));
  };

  models.forEach((model, index) => {
    write(`received-${index}`, chunkSize);
    addChoices("text", index);
    if (model.without !== null) write(`lens-${index}`, model.predictorChunk);
    if (model.predictor.length) addChoices("predictor", index);
    if (index > 0) for (const what of ["difference", "loss"]) write(`${what}-${index}`, chunkSize);
  });
  for (const text of document.querySelectorAll(".text")) {
    for (const kind of ["pointerover", "click"]) text.addEventListener(kind, point);
  }
  choice(element("measure"), ["mean over the queries", "sum over the queries"], 0, (index) => { measure = MEASURES[index]; update(); });
  element("sink").addEventListener("change", () => { update(); paintLosses(); });
  element("download").addEventListener("click", download);
  for (const hidden of document.querySelectorAll(".controls, #download")) hidden.hidden = false;
  prepare();
  paintLosses();
  start();
})();
