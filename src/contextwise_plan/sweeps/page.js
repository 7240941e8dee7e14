(() => {
  const { figures, shade, draw, start, choice, element, json, plain, colour } = Figures;
  const sweep = json("sweep");
  const SYMBOLS = ["circle", "diamond", "square", "triangle-up", "x", "cross"];
  const tokens = (context) => sweep.contexts[context] ?? String(context);
  const show = (id, shown) => { if (element(id)) element(id).hidden = !shown; };

  let landscape = sweep.landscapes[0];  // over the chosen unit
  const steps = sweep.landscapes.map((one) => one.start);  // where each unit's slider stands
  const step = () => steps[sweep.landscapes.indexOf(landscape)];

  // Best-context loss at the slider's budget: a cell is [size, parameters, context, loss, half of its interval, runs, documents].
  const lossTraces = () => {
    const traces = sweep.sizes.flatMap((size, series) => {
      const cells = landscape.cells[step()].filter((cell) => cell[0] === series);
      return cells.length === 0 ? [] : [{
        type: "scatter", mode: "lines+markers", name: plain(size), meta: { series }, showlegend: true,
        x: cells.map((cell) => cell[2]), y: cells.map((cell) => cell[3]),
        error_y: { type: "data", array: cells.map((cell) => cell[4] ?? 0), thickness: 1, width: 0 },
        marker: { size: 7, symbol: SYMBOLS[series % SYMBOLS.length] }, line: { width: 2 },
        customdata: cells.map((cell) => [
          tokens(cell[2]) + (cell[5] > 1 ? `, mean of ${cell[5]} seeds` : ""),
          (cell[4] === null ? "" : ` ± ${cell[4].toFixed(4)}`) + (cell[6] ? `, ${cell[6]} documents` : ""),
        ]),
        hovertemplate: "%{fullData.name}, %{customdata[0]}<br>%{y:.4f}%{customdata[1]}<extra></extra>",
      }];
    });
    const circles = landscape.circles[step()].map(([series, context, loss]) => ({
      type: "scatter", mode: "markers", name: "optimum", meta: { series }, showlegend: false, hoverinfo: "skip",
      x: [context], y: [loss], marker: { size: 19, symbol: "circle-open", line: { width: 2.5 } },
    }));
    return [...traces, ...circles];
  };
  const dashed = () => {
    const overall = landscape.overall[step()];
    if (overall === null) return { shapes: [], annotations: [] };
    const at = Math.log10(overall[1]);
    const line = { dash: "dash", width: 1.5, color: colour(`--series-${overall[0] % 6}`) };
    return {
      shapes: [{ type: "line", x0: overall[1], x1: overall[1], y0: 0, y1: 1, yref: "paper", line }],
      annotations: [{
        x: at, y: 1, yref: "paper", yanchor: "top", showarrow: false,
        text: `${plain(sweep.sizes[overall[0]])}, ${tokens(overall[1])}`,
        ...(at > figures.loss.layout.xaxis.range.reduce((a, b) => a + b) / 2 ? { xanchor: "right", xshift: -5 } : { xanchor: "left", xshift: 5 }),
      }],
    };
  };
  const prepareLoss = () => {
    figures.loss.data = lossTraces();
    Object.assign(figures.loss.layout, dashed());
    figures.loss.layout.yaxis = { ...figures.loss.layout.yaxis, autorange: true };
    element("budget-words").textContent = landscape.words[step()];
    element("budget").setAttribute("aria-valuetext", landscape.words[step()]);
    element("findings").replaceChildren(...landscape.sentences[step()].map((sentence) => {
      const item = document.createElement("li");
      item.textContent = sentence;
      return item;
    }));
  };
  const drawLoss = () => { prepareLoss(); draw("loss"); };

  const chooseUnit = (index) => {
    landscape = sweep.landscapes[index];
    Object.assign(element("budget"), { max: String(landscape.budgets.length - 1), value: String(step()) });
    element("window").textContent = landscape.window;
    figures.context = landscape.context;  // over the chosen unit too
    const exists = landscape.context.data.some((trace) => trace.y.some((value) => value !== null));
    show("context", exists);
    show("no-context", !exists);
  };

  // Context curves and their switches.
  const shown = new Set();
  const logs = sweep.curves.map((curve) => Math.log(curve.context));
  // Where a training context lies between the shortest and the longest, in logarithms: its colour. Sizes differ in dashes and marks.
  const scale = (context) => (Math.log(context) - Math.min(...logs)) / (Math.max(...logs) - Math.min(...logs) || 1);
  const DASHES = ["solid", "dash", "longdash", "dashdot", "longdashdot"];
  const curveTraces = () => [...shown].sort((a, b) => a - b).map((index) => {
    const curve = sweep.curves[index];
    const { losses } = curve;
    const named = innerWidth >= 700 || shown.size <= 5;  // else the names would lie on each other
    const end = losses.length - 1;
    const bars = curve.intervals && {
      type: "data", symmetric: false, thickness: 1, width: 0,
      array: losses.map((loss, i) => (curve.intervals[i][1] ?? loss) - loss),
      arrayminus: losses.map((loss, i) => loss - (curve.intervals[i][0] ?? loss)),
    };
    return {
      type: "scatter", mode: "lines+markers+text", name: plain(`${curve.group}, ${curve.label}`),
      meta: { series: curve.series, scale: scale(curve.context) },
      x: curve.x, y: losses, ...(bars ? { error_y: bars } : {}),
      line: { width: 1.8, dash: curve.intervals ? "dot" : DASHES[curve.series % DASHES.length] },
      marker: { size: losses.map((_, i) => (i === end ? 7 : 0)), symbol: SYMBOLS[curve.series % SYMBOLS.length] },
      text: losses.map((_, i) => (i === end && named ? tokens(curve.context) : "")), textposition: "bottom center",
      textfont: { size: 11 }, cliponaxis: false,
      customdata: curve.bins.map(([low, high]) => (low === high ? `${low}` : `${low} to ${high}`)),
      hovertemplate: "%{fullData.name}<br>%{customdata} visible tokens: %{y:.4f}<extra></extra>",
    };
  });
  const prepareCurves = () => {
    const traces = curveTraces();
    const behind = traces.flatMap((trace) => trace.y.filter((_, i) => trace.x[i] >= 16 || i === trace.y.length - 1));
    const room = 0.06 * (Math.max(...behind) - Math.min(...behind)) || 0.1;
    figures.curves.data = traces;
    figures.curves.layout.yaxis = {
      ...figures.curves.layout.yaxis,
      ...(behind.length ? { range: [Math.min(...behind) - 1.6 * room, Math.max(...behind) + room], autorange: false } : {}),
    };
  };
  const drawCurves = () => {
    prepareCurves();
    draw("curves");
  };
  const addSwitches = () => {
    const best = landscape.overall[landscape.start] ?? [sweep.curves[0].series];
    for (const group of new Set(sweep.curves.map((curve) => curve.group))) {
      const indices = [...sweep.curves.keys()].filter((index) => sweep.curves[index].group === group);
      const box = document.createElement("fieldset");
      const legend = document.createElement("legend");
      const series = sweep.curves[indices[0]].series;
      const all = document.createElement("button");
      all.type = "button";
      all.title = "switch all of them on, or off";
      all.append(group);
      all.addEventListener("click", () => {
        const inputs = [...box.querySelectorAll("input")];
        const wanted = !inputs.some((input) => input.checked);
        for (const input of inputs) {
          input.checked = wanted;
          if (wanted) shown.add(Number(input.dataset.curve)); else shown.delete(Number(input.dataset.curve));
        }
        drawCurves();
      });
      legend.append(all);
      box.append(legend);
      for (const index of indices) {
        const label = document.createElement("label");
        const input = document.createElement("input");
        input.type = "checkbox";
        input.dataset.curve = String(index);
        input.checked = series === best[0] && sweep.curves[index].intervals === null;
        if (input.checked) shown.add(index);
        input.addEventListener("change", () => {
          if (input.checked) shown.add(index); else shown.delete(index);
          drawCurves();
        });
        const own = document.createElement("span");
        own.className = "mark";
        own.style.background = shade(scale(sweep.curves[index].context));
        label.append(input, own, sweep.curves[index].label);
        box.append(label);
      }
      element("switches").append(box);
    }
  };

  const drawUnit = () => { drawLoss(); draw("context"); };
  chooseUnit(0);
  choice(element("units"), sweep.landscapes.map((one) => one.label), 0, (index) => { chooseUnit(index); drawUnit(); });
  if (figures.curves) addSwitches();
  element("budget").addEventListener("input", () => {
    steps[sweep.landscapes.indexOf(landscape)] = Number(element("budget").value);
    drawLoss();
  });
  for (const controls of document.querySelectorAll(".controls")) controls.hidden = false;
  prepareLoss();
  if (figures.curves) prepareCurves();
  start();
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", drawLoss);
})();
