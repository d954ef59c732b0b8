/* Light or dark: as the system says until the button is pressed. */
memfit.redraws = [];
memfit.redraw = () => memfit.redraws.forEach((draw) => draw());

/* The colour that a CSS variable has now, as rgb(): Plotly does not read variables. */
memfit.colour = (() => {
  const probe = document.createElement("span");
  probe.hidden = true;
  document.body.append(probe);
  return (name, opacity = 1) => {
    probe.style.color = `var(--${name})`;
    const [red, green, blue] = getComputedStyle(probe).color.match(/[\d.]+/g);
    return `rgba(${red}, ${green}, ${blue}, ${opacity})`;
  };
})();

(() => {
  const system = matchMedia("(prefers-color-scheme: dark)"), root = document.documentElement;
  document.getElementById("theme").addEventListener("click", () => {
    const dark = root.dataset.theme ? root.dataset.theme === "dark" : system.matches;
    root.dataset.theme = dark ? "light" : "dark";
    memfit.redraw();
  });
  system.addEventListener("change", memfit.redraw);
  let waiting;
  addEventListener("resize", () => {
    clearTimeout(waiting);
    waiting = setTimeout(memfit.redraw, 80);
  });
})();
