"use strict";
const memfit = {};

/* Sizes as memfit.units.format_size writes them, ties to the even digit as Python rounds them. */
memfit.size = (bytes) => {
  const fixed = (value, digits) => {
    const scaled = value * 10 ** digits, floor = Math.floor(scaled), rest = scaled - floor;
    const up = rest > 0.5 || (rest === 0.5 && floor % 2 === 1);
    return ((up ? floor + 1 : floor) / 10 ** digits).toFixed(digits);
  };
  const size = Math.abs(bytes), sign = bytes < 0 ? "-" : "";
  if (size >= 2 ** 40) return `${sign}${fixed(size / 2 ** 40, 2)} TiB`;
  if (size >= 2 ** 30) return `${sign}${fixed(size / 2 ** 30, 2)} GiB`;
  if (size >= 2 ** 20) return `${sign}${fixed(size / 2 ** 20, 1)} MiB`;
  if (size >= 2 ** 10) return `${sign}${fixed(size / 2 ** 10, 1)} KiB`;
  return `${sign}${size} B`;
};

memfit.count = (number) => number.toLocaleString("en-US");

/* Ticks of a memory axis from 0 to `top` bytes: 1, 2, 2.5 or 5 times a power of ten of one unit. */
memfit.ticks = (top, wanted) => {
  const [unit, name] = [[2 ** 40, "TiB"], [2 ** 30, "GiB"], [2 ** 20, "MiB"], [2 ** 10, "KiB"], [1, "B"]]
    .find(([one]) => top >= one) ?? [1, "B"];
  const rough = top / unit / wanted, power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 2.5, 5, 10].map((digit) => digit * power).find((size) => size >= rough);
  const values = [];
  for (let k = 0; k * step * unit <= top; k++) values.push(Number((k * step).toPrecision(6)));
  return {
    tickvals: values.map((value) => value * unit),
    ticktext: values.map((value) => (value === 0 ? "0" : `${value} ${name}`)),
  };
};
