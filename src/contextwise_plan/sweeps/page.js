(() => {
  const { figures, draw, start, choice, element, json, plain, colour } = Figures;
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
    element("findings").hidden = !landscape.sentences[step()].length;  // else an empty line
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

  const drawUnit = () => { drawLoss(); draw("context"); };
  chooseUnit(0);
  choice(element("units"), sweep.landscapes.map((one) => one.label), 0, (index) => { chooseUnit(index); drawUnit(); });
  element("budget").addEventListener("input", () => {
    steps[sweep.landscapes.indexOf(landscape)] = Number(element("budget").value);
    drawLoss();
  });
  for (const controls of document.querySelectorAll(".controls")) controls.hidden = false;
  prepareLoss();
  start();
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", drawLoss);
})();
