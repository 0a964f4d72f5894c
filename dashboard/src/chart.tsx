// Figures over time.
import { useEffect, useRef, useState } from "preact/hooks";
import uPlot from "uplot";
import "uplot/dist/uPlot.min.css";
import { absolute, compact, timeStyle } from "./format";
import { theme } from "./theme";

/** Of what is drawn, in seconds: a single minute alone would be drawn as years. */
const SHORTEST_S = 600;

function span(times: ArrayLike<number>): [number | null, number | null] {
  if (times.length === 0) return [null, null];
  const last = times[times.length - 1];
  return [Math.min(times[0], last - SHORTEST_S), last];
}

export interface Series { label: string; color: 1 | 2 | 3 | 4 | 5; values: (number | null)[]; fill?: boolean }

const css = (name: string) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

export function Chart({ times, series, format = compact, label }: { times: number[]; series: Series[]; format?: (n: number) => string; label: string }) {
  const place = useRef<HTMLDivElement>(null);
  const plot = useRef<uPlot | null>(null);
  const [at, setAt] = useState<number | null>(null);
  const utc = timeStyle.value === "utc";
  const shape = `${series.map((each) => each.label).join("\n")} ${theme.value} ${utc}`;
  const data = [times, ...series.map((each) => each.values)] as uPlot.AlignedData;
  useEffect(() => {
    const element = place.current!;
    const axis = { stroke: css("--faint"), grid: { stroke: css("--line"), width: 1 }, ticks: { show: false }, font: `11px ${css("--sans")}` };
    plot.current = new uPlot(
      {
        width: element.clientWidth,
        height: element.clientHeight,
        padding: [8, 16, 0, 0],
        tzDate: utc ? (ts) => uPlot.tzDate(new Date(ts * 1000), "Etc/UTC") : undefined,
        cursor: { y: false, points: { size: 6 }, drag: { x: false, y: false } },
        legend: { show: false },
        scales: { x: { range: (own) => span(own.data[0]) }, y: { range: (_, __, most) => [0, Math.max(most * 1.08, 1)] } },
        axes: [
          { ...axis, size: 26, space: 60, values: [[86400, "{MMM} {D}", null, null, null, null, null, null, 1], [3600, "{HH}:{mm}", "\n{MMM} {D}", null, null, null, null, null, 1], [60, "{HH}:{mm}", null, null, null, null, null, null, 1], [1, "{HH}:{mm}:{ss}", null, null, null, null, null, null, 1]] },
          { ...axis, size: (_, labels) => 16 + 6 * Math.max(5, ...(labels ?? []).map((each) => each.length)), space: 26, values: (_, ticks) => ticks.map((tick) => format(tick)) },
        ],
        series: [{}, ...series.map((each) => ({ label: each.label, stroke: css(`--s${each.color}`), width: 1.5, spanGaps: true, points: { show: (own: uPlot) => own.data[0].length === 1, size: 6 }, fill: each.fill ? `color-mix(in srgb, ${css(`--s${each.color}`)} 12%, transparent)` : undefined }))],
        hooks: { setCursor: [(own) => setAt(own.cursor.idx ?? null)] },
      },
      data,
      element,
    );
    const sizes = new ResizeObserver(() => plot.current?.setSize({ width: element.clientWidth, height: element.clientHeight }));
    sizes.observe(element);
    return () => {
      sizes.disconnect();
      plot.current?.destroy();
      plot.current = null;
    };
  }, [shape]);
  useEffect(() => plot.current?.setData(data), [times, series]);
  const shown = at ?? times.length - 1;
  return (
    <figure style={{ margin: 0 }} aria-label={label}>
      <div class="legend">
        {series.map((each) => <span key={each.label}><i style={{ background: `var(--s${each.color})` }} />{each.label} <b>{each.values[shown] === null || each.values[shown] === undefined ? "–" : format(each.values[shown]!)}</b></span>)}
        <span class="faint" style={{ marginLeft: "auto" }}>{times[shown] ? absolute(times[shown] * 1e6, utc).slice(0, 16) : ""}</span>
      </div>
      <div class="chart" ref={place} role="img" aria-label={label} />
    </figure>
  );
}

/** Rows of a history as one point each minute: where nothing was noted, nothing changed. */
export function filled<R extends { time_us: number }>(rows: R[], sinceUs: number, untilUs: number, stepUs: number): { times: number[]; at: (R | undefined)[]; last: (R | undefined)[] } {
  const known = new Map(rows.map((row) => [row.time_us, row]));
  const times: number[] = [];
  const at: (R | undefined)[] = [];
  const last: (R | undefined)[] = [];
  let before: R | undefined;
  for (let us = Math.ceil(sinceUs / stepUs) * stepUs; us < untilUs; us += stepUs) {
    before = known.get(us) ?? before;
    times.push(us / 1e6);
    at.push(known.get(us));
    last.push(before);
  }
  return { times, at, last };
}
