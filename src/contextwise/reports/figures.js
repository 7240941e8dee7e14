"use strict";
const Figures = (() => {
  // On a touch screen a drag scrolls the page, and on a narrow one the buttons would lie on the legend.
  const touch = matchMedia("(pointer: coarse)").matches;
  const config = {
    responsive: true, displaylogo: false, displayModeBar: innerWidth >= 700, modeBarButtons: [["toImage", "resetScale2d"]],
    toImageButtonOptions: { format: "svg" }, // for papers
  };
  const element = (id) => document.getElementById(id);
  const json = (id) => JSON.parse(element(id).textContent);
  const figures = json("figures");
  // Plotly interprets some HTML tags in names and texts.
  const plain = (text) => text.replaceAll("&", "&amp;").replaceAll("<", "&lt;").replaceAll(">", "&gt;");
  const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();


  // Colours come from the style sheet, so that figures follow the reader's light or dark scheme.
  const dress = (figure) => {
    const [ink, rule, strong] = ["--ink", "--rule", "--strong"].map(colour);
    const axis = { gridcolor: rule, linecolor: strong, zerolinecolor: strong, automargin: true };
    const layout = figure.layout;
    Object.assign(layout, {
      paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)", dragmode: touch ? false : "zoom",
      font: { color: ink, size: 13, family: getComputedStyle(document.body).fontFamily },
      hoverlabel: { bgcolor: colour("--panel"), bordercolor: strong, font: { color: ink } },
      modebar: { bgcolor: "rgba(0,0,0,0)", color: colour("--quiet"), activecolor: ink },
    });
    layout.xaxis = { ...layout.xaxis, ...axis };
    layout.yaxis = { ...layout.yaxis, ...axis, zeroline: false };
    for (const label of layout.annotations ?? []) label.bgcolor = colour("--paper"); // a line behind it does not strike it
    for (const trace of figure.data) {
      const own = trace.meta.series === null ? strong : colour(`--series-${trace.meta.series % 6}`);
      // Behind the sixth series the colours come again, with another dash and another mark.
      const turn = Math.floor((trace.meta.series ?? 0) / 6) % 3;
      trace.line = { dash: ["solid", "dash", "dot"][turn], ...trace.line, color: own };
      trace.marker = { symbol: ["circle", "diamond", "cross"][turn], ...trace.marker, color: own };
      // On a bar of its own colour an error bar could not be seen.
      for (const bars of [trace.error_x, trace.error_y]) if (bars) bars.color = trace.type === "bar" ? ink : own;
    }
  };
  const draw = (name) => {
    dress(figures[name]);
    return Plotly.react(name, figures[name].data, figures[name].layout, config);
  };
  const drawAll = () => Object.keys(figures).forEach(draw);
  const start = () => {
    drawAll();
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", drawAll);
  };
  // A row of buttons of which one is pressed; `choose` is called with its number.
  const choice = (group, labels, pressed, choose) => {
    const buttons = labels.map((label, chosen) => {
      const button = document.createElement("button");
      button.type = "button";
      button.textContent = label;
      button.setAttribute("aria-pressed", String(chosen === pressed));
      button.addEventListener("click", () => {
        buttons.forEach((other, i) => other.setAttribute("aria-pressed", String(i === chosen)));
        choose(chosen);
      });
      group.append(button);
      return button;
    });
    group.hidden = false;
  };
  return { figures, draw, start, choice, element, json, plain, colour };
})();
