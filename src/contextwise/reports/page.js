"use strict";
(() => {
  const figures = JSON.parse(document.getElementById("figures").textContent);
  // On a touch screen a drag scrolls the page, and on a narrow one the buttons would lie on the legend.
  const touch = matchMedia("(pointer: coarse)").matches;
  const config = {
    responsive: true, displaylogo: false, displayModeBar: innerWidth >= 700, modeBarButtons: [["toImage", "resetScale2d"]],
  };
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
    for (const trace of figure.data) {
      const own = colour(`--series-${trace.meta.series % 6}`);
      trace.line = { ...trace.line, color: own };
      trace.marker = { ...trace.marker, color: own };
      if (trace.error_x) trace.error_x.color = own;
    }
  };
  const draw = (name) => {
    dress(figures[name]);
    return Plotly.react(name, figures[name].data, figures[name].layout, config);
  };
  const drawAll = () => Object.keys(figures).forEach(draw);
  drawAll();
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", drawAll);

  const training = figures.training;
  if (!training) return;
  const group = document.querySelector(".axes");
  const buttons = training.axes.map((axis, chosen) => {
    const button = document.createElement("button");
    button.type = "button";
    button.textContent = axis.label;
    button.setAttribute("aria-pressed", String(chosen === 0));
    button.addEventListener("click", () => {
      buttons.forEach((other, i) => other.setAttribute("aria-pressed", String(i === chosen)));
      training.data.forEach((trace, i) => { trace.x = axis.x[i]; });
      training.layout.xaxis = { ...training.layout.xaxis, ...axis.layout, autorange: true };
      draw("training");
    });
    group.append(button);
    return button;
  });
  group.hidden = false;
})();
