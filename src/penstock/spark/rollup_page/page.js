"use strict";
// Draws what stands in #data with uPlot: a panel each for messages, latencies, lag, dead letters.
(() => {
  const { panels } = JSON.parse(document.getElementById("data").textContent);
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const short = new Intl.NumberFormat("en", { notation: "compact", maximumFractionDigits: 1 });
  const whole = new Intl.NumberFormat("en");
  const day = "\n{YYYY}-{MM}-{DD}";
  // Least distance of ticks in seconds; what all say, and what is added where a year, a day begins.
  const CLOCK = [
    [86400, "{YYYY}-{MM}-{DD}", null, null, null, null, null, null, 1],
    [60, "{HH}:{mm}", day, null, day, null, null, null, 1],
    [1, "{HH}:{mm}:{ss}", day, null, day, null, null, null, 1],
  ];
  const utc = (seconds) => uPlot.tzDate(new Date(seconds * 1e3), "UTC");
  const took = (s) =>
    s == null ? "–" : s >= 120 ? `${(s / 60).toPrecision(3)} min` : s >= 1 ? `${+s.toPrecision(3)} s`
      : s >= 1e-3 ? `${+(s * 1e3).toPrecision(3)} ms` : `${+(s * 1e6).toPrecision(3)} µs`;

  function stacked(values) {
    // The sum of a series and all below it, drawn from the highest to the lowest.
    const sums = [];
    values.forEach((series, n) =>
      sums.push(series.map((value, i) => (value || 0) + (n ? sums[n - 1][i] : 0))));
    return sums;
  }

  function options(panel, width) {
    const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
    const isTime = panel.unit === "s";
    const shown = isTime ? took : (n) => (n == null ? "–" : whole.format(n));
    const axis = { stroke: colour("--soft"), grid: { stroke: colour("--line"), width: 1 }, ticks: { show: false } };
    const powers = (u, ticks) => ticks.map((n) => (Math.abs(Math.log10(n) % 1) < 1e-9 ? n : null));
    const isBars = panel.kind === "bars";
    const given = isBars ? [...panel.series].reverse() : panel.series;
    return {
      width,
      height: panel.wide ? 260 : 220,
      tzDate: utc,
      cursor: { sync: { key: "rollup" }, points: { show: !isBars } },
      scales: {
        x: isBars ? { range: (u, least, most) => [least - panel.step_s * 0.6, most + panel.step_s * 1.1] } : {},
        y: isTime ? { distr: 3, log: 10 } : { range: (u, least, most) => [0, Math.max(1, most * 1.08)] },
      },
      axes: [
        { ...axis, grid: { show: false }, values: CLOCK },
        { ...axis, size: 64, values: (u, ticks) => ticks.map((n) => (n == null ? null : isTime ? took(n) : short.format(n))),
          ...(isTime ? { filter: powers, grid: { ...axis.grid, filter: powers } } : {}) },
      ],
      series: [
        { label: "UTC", value: "{YYYY}-{MM}-{DD} {HH}:{mm}" },
        ...given.map((each) => ({
          label: each.name,
          stroke: each.colour,
          fill: isBars ? each.colour : each.fill ? each.colour + "22" : undefined,
          width: isBars ? 0 : each.width || 1.75,
          dash: each.dash,
          points: { show: !isBars && each.values.filter((v) => v != null).length < 40, size: 4 },
          paths: isBars ? uPlot.paths.bars({ size: [0.86, 40], align: 1 }) : undefined,
          value: (u, _, __, i) => (i == null ? "" : shown(each.values[i])),
        })),
      ],
    };
  }

  function draw() {
    for (const place of document.querySelectorAll("[data-panel]")) {
      const panel = panels[+place.dataset.panel];
      const values = panel.series.map((each) => each.values);
      const drawn = panel.kind === "bars" ? stacked(values).reverse() : values;
      place.replaceChildren();
      new uPlot(options(panel, place.clientWidth), [panel.times, ...drawn], place);
    }
  }

  let due = 0;
  const later = () => { clearTimeout(due); due = setTimeout(draw, 120); };
  draw();
  addEventListener("resize", later);
  dark.addEventListener("change", later);
})();
