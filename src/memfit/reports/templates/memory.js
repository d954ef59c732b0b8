/* The stacked chart of memory over events, its views, and the text that follows the pointer. */
(() => {
  const data = JSON.parse(document.getElementById("charts").textContent).memory;
  if (!data.views.length) return;
  const box = document.getElementById("memory-chart");
  const moment = document.getElementById("moment");
  const values = [...document.querySelectorAll("#legend b")];
  const buttons = [...document.querySelectorAll("#views button")];
  const live = data.x.map((_, i) => data.layers.reduce((sum, layer) => sum + layer.bytes[i], 0));
  const height = live.map((bytes, i) => Math.max(bytes, ...data.lines.map((line) => line.bytes[i])));
  const peakAt = data.x.indexOf(data.peak.x);
  let view = data.views[data.opening];
  let range = [view.start, view.stop - 1];

  const inside = (event) => event >= range[0] && event <= range[1];

  const read = (i) => {
    const event = data.x[i], delta = data.deltas[i];
    const phase = data.phases.find(({ stop }) => event < stop);
    const head = document.createElement("b");
    head.textContent =
      i === peakAt ? `The peak, ${memfit.size(data.peak.bytes)}` : `Event ${memfit.count(event)}`;
    const change = `${delta < 0 ? "frees" : "takes"} ${memfit.size(Math.abs(delta))}`;
    const words = [
      phase.step ? `step ${phase.step}` : "before the first step",
      phase.label,
      data.names[data.modules[i]],
      `${data.names[data.ops[i]]} ${change}`,
    ];
    moment.replaceChildren(head, ` · ${words.filter(Boolean).join(" · ")}`);
    [...data.layers, ...data.lines].forEach((curve, k) => {
      values[k].textContent = memfit.size(curve.bytes[i]);
    });
  };

  const traces = () => {
    const ink = memfit.colour("ink");
    const curve = (y, line, more) =>
      ({ x: data.x, y, mode: "lines", hoverinfo: "none", line: { shape: "hv", ...line }, ...more });
    return [
      ...data.layers.map((layer) => curve(layer.bytes, { width: 0.5, color: memfit.colour("card") }, {
        stackgroup: "live",
        fillcolor: memfit.colour(layer.name),
      })),
      /* The outline shows spikes that are narrower than a pixel. */
      curve(live, { width: 1, color: memfit.colour("ink", 0.45) }, { hoverinfo: "skip" }),
      ...data.lines.map((line) => curve(line.bytes, {
        width: 1.5,
        color: ink,
        dash: line.label === "Reserved" ? "dash" : "solid",
      })),
      {
        x: [data.peak.x], y: [data.peak.bytes], mode: "markers", hoverinfo: "skip",
        marker: { size: 7, color: ink },
      },
    ];
  };

  const peakLabel = () => {
    const left = data.peak.x > (range[0] + range[1]) / 2;
    return {
      x: data.peak.x, y: data.peak.bytes, text: `peak ${memfit.size(data.peak.bytes)}`,
      ax: left ? -26 : 26, ay: -16, xanchor: left ? "right" : "left",
      showarrow: true, arrowhead: 0, arrowwidth: 1, arrowcolor: memfit.colour("ink"),
      font: { size: 13, color: memfit.colour("ink") }, bgcolor: memfit.colour("card", 0.85),
    };
  };

  const ceilingLine = ({ bytes }) => ({
    type: "line", xref: "paper", x0: 0, x1: 1, y0: bytes, y1: bytes,
    line: { color: memfit.colour("bad"), width: 2, dash: "dash" },
  });
  const ceilingLabel = ({ bytes, label }) => ({
    xref: "paper", x: 0, y: bytes, xanchor: "left", yanchor: "bottom", yshift: 2,
    text: label, showarrow: false,
    font: { size: 12, color: memfit.colour("bad") }, bgcolor: memfit.colour("card", 0.85),
  });

  const draw = () => {
    const shown = height.filter((_, i) => data.x[i] <= range[1] && !(data.x[i + 1] <= range[0]));
    const highest = Math.max(1, ...shown);
    /* A budget far above the curve would flatten it: the bar at the top of the page shows it. */
    const ceiling = data.ceiling?.bytes < 1.3 * highest ? data.ceiling : null;
    const top = 1.12 * Math.max(highest, ceiling?.bytes ?? 0);
    const { shapes, annotations } = memfit.phaseStrip(box, data.phases, range);
    if (ceiling) {
      shapes.push(ceilingLine(ceiling));
      annotations.push(ceilingLabel(ceiling));
    }
    if (inside(data.peak.x)) annotations.push(peakLabel());
    memfit.draw(box, traces(), {
      shapes,
      annotations,
      margin: memfit.marginUnderStrip,
      xaxis: memfit.axis({
        range, showgrid: false, title: memfit.title("events in order"),
        showspikes: true, spikemode: "across", spikethickness: 1, spikedash: "solid",
        spikecolor: memfit.colour("ink"),
      }),
      yaxis: memfit.memoryAxis(box, top),
    }, false);
  };

  const show = (from, to) => {
    range = [Math.max(from, 0), Math.min(to, data.num_events - 1)];
    draw();
  };
  const showView = () => show(view.start, view.stop - 1);

  buttons.forEach((button, k) => button.addEventListener("click", () => {
    buttons.forEach((other) => other.setAttribute("aria-pressed", String(other === button)));
    view = data.views[k];
    showView();
  }));
  memfit.redraws.push(draw);
  draw();
  read(peakAt);
  box.on("plotly_hover", ({ points }) => read(points[0].pointNumber));
  box.on("plotly_unhover", () => read(peakAt));
  box.on("plotly_doubleclick", showView);
  box.on("plotly_relayout", (change) => {
    if ("xaxis.range[0]" in change) show(change["xaxis.range[0]"], change["xaxis.range[1]"]);
  });
})();
