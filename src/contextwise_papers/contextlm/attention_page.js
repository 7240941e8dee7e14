(() => {
  const { figures, draw, start, choice, element, json, plain, colour } = Figures;
  const reading = json("reading");
  const { pieces, models, chunkSize } = reading;
  const MEASURES = ["mean", "sum"];
  const STRONGEST = 55;  // per cent of a series' colour behind a token: text on it stays readable
  const visible = (text) => text.replaceAll("\n", "↵").replaceAll("\t", "⇥") || "·";
  const mean = (rows) => rows[0].map((_, i) => rows.reduce((total, row) => total + row[i], 0) / rows.length);
  const chosen = models.map(() => [0, 0]);  // layer and head; 0: the mean of all
  let measure = "mean";

  // Attention received in the layer and head that are chosen.
  const counted = (sums) => (measure === "sum" ? sums : sums.map((value, i) => value / (sums.length - i)));
  const received = (index) => {
    const [layer, head] = chosen[index];
    const { layers } = models[index];
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
    const values = models.map((_, index) => received(index));
    const most = largest(values);
    const differences = values.slice(1).map((some) => minus(some, values[0]));
    const widest = largest(differences);
    values.forEach((some, index) => paint(`received-${index}`, some, most, `var(--series-${index})`));
    differences.forEach((some, i) => paintSigned(`difference-${i + 1}`, some, widest, 0, ["less", "more"]));
  };
  const lens = (model) => (model.without === null ? null : minus(model.without, model.nats));
  const paintLenses = () => {
    const lenses = models.map(lens);
    const known = lenses.filter((some) => some !== null);
    lenses.forEach((some, index) => some && paintSigned(`lens-${index}`, some, largest(known), 1, ["hurt", "helped"]));
  };

  // Bars: by chunk, a trace for each model.
  const textOf = (chunk) => visible(pieces.slice(chunk * chunkSize, (chunk + 1) * chunkSize).join("")).trim();
  const cropped = (text) => (text.length > reading.cropped ? `${text.slice(0, reading.cropped - 1)}…` : text);
  const hover = (index, chunk, value, first) => {
    const against = index === 0 || !first[chunk] ? "" : ` (${(100 * (value / first[chunk] - 1)).toFixed(1).replace("-", "−")}% against ${models[0].name})`;
    return `${models[index].name}, chunk ${chunk} “${textOf(chunk)}”: ${value.toPrecision(3)}${against}`;
  };
  const prepareChunks = () => {
    const count = Math.ceil(pieces.length / chunkSize);
    const rows = models.map((_, index) => {
      const sums = Array(count).fill(0);
      received(index).forEach((value, i) => { sums[Math.floor(i / chunkSize)] += value; });
      return sums;
    });
    const indices = [...Array(count).keys()];
    figures.chunks.data = rows.map((values, index) => ({
      type: "bar", name: plain(models[index].name), meta: { series: index }, showlegend: models.length > 1, x: [...values.keys()], y: values,
      customdata: values.map((value, chunk) => plain(hover(index, chunk, value, rows[0]))), hovertemplate: "%{customdata}<extra></extra>",
    }));
    const most = Math.max(1e-12, ...rows.flatMap((values) => values.filter((_, i) => i > 0 || !withoutFirst() || count === 1)));
    const named = count <= reading.namedChunks && innerWidth >= 500;
    const beyond = [...rows.entries()].filter(([, values]) => values[0] > 1.12 * most);
    Object.assign(figures.chunks.layout, {
      annotations: beyond.length === 0 ? [] : [{
        x: 0.6, y: 1, yref: "paper", xanchor: "left", yanchor: "top", showarrow: false, align: "left",
        bgcolor: colour("--paper"), opacity: 0.9,
        text: `beyond the scale: ${beyond.map(([index, values]) => `${plain(models[index].name)} ${digits(values[0])}`).join(", ")}`,
      }],
      xaxis: {
        ...figures.chunks.layout.xaxis, type: "linear", range: [-0.6, count - 0.4], zeroline: false, showgrid: false,
        ...(named ? { tickmode: "array", tickvals: indices, ticktext: indices.map((chunk) => plain(`${chunk}: ${cropped(textOf(chunk))}`)), tickangle: count > 4 ? -40 : 0, ticklabeloverflow: "allow" } : { tickmode: "auto" }),
        title: { text: named ? "" : `chunk of ${chunkSize} tokens` },
      },
      yaxis: { ...figures.chunks.layout.yaxis, range: [0, 1.12 * most] },
    });
  };
  const prepare = () => { paintReceived(); prepareChunks(); };
  const update = () => { prepare(); Object.keys(figures).forEach(draw); };

  // Controls.
  const fill = (select, count, what) => {
    const names = [count > 1 ? `mean of ${count}` : `the only ${what}`, ...(count > 1 ? Array.from({ length: count }, (_, i) => `${i + 1}`) : [])];
    select.replaceChildren(...names.map((name, i) => new Option(name, String(i))));
  };
  const addChoices = (index) => {
    const { layers } = models[index];
    const [layer, head] = ["layer", "head"].map((what) => element(`${what}-${index}`));
    fill(layer, layers.length, "layer");
    fill(head, Math.min(...layers.map((heads) => heads.length)), "head");
    for (const [i, select] of [layer, head].entries()) {
      select.addEventListener("change", () => { chosen[index][i] = Number(select.value); update(); });
    }
  };
  const description = (index) => {
    const numbers = models.map((model, i) => {
      const parts = [`received ${received(i)[index].toPrecision(3)}`];
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
  models.forEach((model, index) => {
    write(`received-${index}`, chunkSize);
    addChoices(index);
    if (model.without !== null) write(`lens-${index}`, model.contextChunk);
    if (index > 0) write(`difference-${index}`, chunkSize);
  });
  for (const text of document.querySelectorAll(".text")) {
    for (const kind of ["pointerover", "click"]) text.addEventListener(kind, point);
  }
  choice(element("measure"), ["mean over the queries", "sum over the queries"], 0, (index) => { measure = MEASURES[index]; update(); });
  element("sink").addEventListener("change", () => { update(); paintLenses(); });
  for (const hidden of document.querySelectorAll(".controls")) hidden.hidden = false;
  prepare();
  paintLenses();
  start();
})();
