/* The stacked chart of memory over events, its views, and the line of text that follows the pointer. */
(() => {
  const data = JSON.parse(document.getElementById("charts").textContent).memory;
  const box = document.getElementById("memory-chart");
  if (!data.views.length) return;
  const height = data.x.map((_, i) => Math.max(
    data.layers.reduce((sum, layer) => sum + layer.bytes[i], 0), ...data.lines.map((line) => line.bytes[i])));
  const buttons = [...document.querySelectorAll("#views button")];
  const values = [...document.querySelectorAll("#legend b")];
  const moment = document.getElementById("moment");
  const peakAt = data.x.indexOf(data.peak.x);
  let view = data.views[data.opening], range = [view.start, view.stop - 1];

  const phaseOf = (event) => data.phases.find((phase) => event < phase.stop);

  const read = (i) => {
    const event = data.x[i], phase = phaseOf(event), delta = data.deltas[i];
    const head = document.createElement("b");
    head.textContent = i === peakAt ? `The peak, ${memfit.size(data.peak.bytes)}` : `Event ${memfit.count(event)}`;
    const words = [phase.step ? `step ${phase.step}` : "before the first step", phase.label, data.names[data.modules[i]],
      `${data.names[data.ops[i]]} ${delta < 0 ? "frees" : "takes"} ${memfit.size(Math.abs(delta))}`];
    moment.replaceChildren(head, ` · ${words.filter(Boolean).join(" · ")}`);
    [...data.layers, ...data.lines].forEach((curve, k) => { values[k].textContent = memfit.size(curve.bytes[i]); });
  };

  const traces = () => [
    ...data.layers.map((layer) => ({
      x: data.x, y: layer.bytes, stackgroup: "live", mode: "lines", hoverinfo: "none",
      line: { shape: "hv", width: 0.5, color: memfit.colour("card") }, fillcolor: memfit.colour(layer.name),
    })),
    /* The outline shows spikes that are narrower than a pixel. */
    { x: data.x, y: height, mode: "lines", hoverinfo: "skip", line: { shape: "hv", width: 1, color: memfit.colour("ink", 0.45) } },
    { x: [data.peak.x], y: [data.peak.bytes], mode: "markers", hoverinfo: "skip", marker: { size: 7, color: memfit.colour("ink") } },
    ...data.lines.map((line) => ({
      x: data.x, y: line.bytes, mode: "lines", hoverinfo: "none",
      line: { shape: "hv", width: 1.5, color: memfit.colour("ink"), dash: line.label === "Reserved" ? "dash" : "solid" },
    })),
  ];

  const peakMark = (top) => {
    const right = data.peak.x > (range[0] + range[1]) / 2;
    return {
      x: data.peak.x, y: data.peak.bytes, text: `peak ${memfit.size(data.peak.bytes)}`, showarrow: true, arrowhead: 0, arrowwidth: 1,
      ax: right ? -26 : 26, ay: -16, xanchor: right ? "right" : "left", arrowcolor: memfit.colour("ink"),
      font: { size: 13, color: memfit.colour("ink") }, bgcolor: memfit.colour("card", 0.85), borderpad: 2,
    };
  };

  const draw = () => {
    const seen = height.filter((_, i) => data.x[i] >= range[0] && data.x[i] <= range[1]);
    const highest = Math.max(...seen), ceiling = data.ceiling;
    const withCeiling = ceiling && ceiling.bytes < 1.3 * highest;
    const top = 1.12 * (withCeiling ? Math.max(highest, ceiling.bytes) : highest);
    const { shapes, annotations } = memfit.phaseStrip(box, data.phases, range);
    if (data.peak.x >= range[0] && data.peak.x <= range[1]) annotations.push(peakMark(top));
    if (withCeiling) {
      shapes.push({ type: "line", xref: "paper", x0: 0, x1: 1, y0: ceiling.bytes, y1: ceiling.bytes, line: { color: memfit.colour("bad"), width: 2, dash: "dash" } });
      annotations.push({ xref: "paper", x: 0, y: ceiling.bytes, xanchor: "left", yanchor: "bottom", showarrow: false,
        text: ceiling.label, font: { color: memfit.colour("bad"), size: 12 }, bgcolor: memfit.colour("card", 0.85), borderpad: 2, yshift: 2 });
    }
    memfit.draw(box, traces(), {
      margin: { l: 64, r: 14, t: 32, b: 40 }, shapes, annotations,
      xaxis: memfit.axis({ range, showgrid: false, title: memfit.title("events in order"), showspikes: true, spikemode: "across",
        spikethickness: 1, spikedash: "solid", spikecolor: memfit.colour("ink") }),
      yaxis: memfit.memoryAxis(box, top),
    });
  };

  const show = (from, to) => {
    range = [from, to];
    draw();
  };
  buttons.forEach((button, k) => button.addEventListener("click", () => {
    buttons.forEach((other) => other.setAttribute("aria-pressed", String(other === button)));
    view = data.views[k];
    show(view.start, view.stop - 1);
  }));

  memfit.redraws.push(draw);
  draw();
  read(peakAt);
  box.on("plotly_hover", (hover) => read(hover.points[0].pointNumber));
  box.on("plotly_unhover", () => read(peakAt));
  box.on("plotly_relayout", (change) => {
    if ("xaxis.range[0]" in change) show(Math.max(change["xaxis.range[0]"], 0), Math.min(change["xaxis.range[1]"], data.num_events - 1));
    else if (change["xaxis.autorange"]) show(view.start, view.stop - 1);
  });
})();
