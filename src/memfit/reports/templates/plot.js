/* What all charts share: axes, the strip of phases, the way they are drawn. */
memfit.layout = (box, changes) => ({
  margin: { l: 64, r: 14, t: 8, b: 40 },
  paper_bgcolor: "rgba(0, 0, 0, 0)",
  plot_bgcolor: "rgba(0, 0, 0, 0)",
  font: { family: getComputedStyle(document.body).fontFamily, size: 12, color: memfit.colour("quiet") },
  showlegend: false,
  hovermode: "x",
  /* On a touch screen a drag scrolls the page. */
  dragmode: matchMedia("(pointer: coarse)").matches ? false : "zoom",
  width: box.clientWidth,
  height: box.clientHeight,
  ...changes,
});

memfit.axis = (changes) => ({
  gridcolor: memfit.colour("line"),
  zerolinecolor: memfit.colour("line"),
  linecolor: memfit.colour("line"),
  tickformat: ",d",
  fixedrange: false,
  ...changes,
});

memfit.title = (text) => ({ text, standoff: 8, font: { size: 12 } });

memfit.memoryAxis = (box, top) => memfit.axis({
  range: [0, top],
  fixedrange: true,
  ...memfit.ticks(top, box.clientHeight / 75),
});

memfit.draw = (box, traces, layout) =>
  Plotly.react(box, traces, memfit.layout(box, layout), { displayModeBar: false, responsive: false });

/* The phases as a strip above the plot, each named as far as its width allows. */
memfit.phaseStrip = (box, phases, [from, to]) => {
  const pixels = (box.clientWidth - 78) / (to - from);
  const shades = { forward: 0.15, backward: 0.3, optimizer: 0.46 };
  const shapes = [], annotations = [];
  for (const phase of phases) {
    const start = Math.max(phase.start, from), stop = Math.min(phase.stop, to);
    const width = (stop - start) * pixels;
    if (width < 1) continue;
    const shade = shades[phase.label] ?? 0.08;
    shapes.push({
      type: "rect", xref: "x", yref: "paper", x0: start, x1: stop, y0: 1.01, y1: 1.01 + 20 / (box.clientHeight - 72),
      fillcolor: memfit.colour("quiet", shade), line: { width: 0 },
    });
    if (width > 30 && start > from) shapes.push({
      type: "line", xref: "x", yref: "paper", x0: start, x1: start, y0: 0, y1: 1.01,
      line: { width: 1, color: memfit.colour("quiet", 0.45), dash: "dot" }, layer: "above",
    });
    const room = Math.floor(width / 8.5);
    const label = room >= phase.label.length ? phase.label : room >= 2 ? phase.label[0].toUpperCase() : "";
    if (label) annotations.push({
      xref: "x", yref: "paper", x: (start + stop) / 2, y: 1.01 + 10 / (box.clientHeight - 72), yanchor: "middle",
      text: label, showarrow: false, font: { size: 12, color: memfit.colour("ink") },
    });
  }
  return { shapes, annotations };
};
