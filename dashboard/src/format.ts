// Numbers, sizes and times, as people read them.
import { signal } from "@preact/signals";

const whole = new Intl.NumberFormat("en");
const short = new Intl.NumberFormat("en", { notation: "compact", maximumFractionDigits: 1 });

export const count = (n: number) => whole.format(n);
export const compact = (n: number) => (Math.abs(n) < 10_000 ? whole.format(n) : short.format(n));

export function rate(perSecond: number): string {
  if (perSecond === 0) return "0";
  if (perSecond < 10) return perSecond.toFixed(1);
  return compact(Math.round(perSecond));
}

export function bytes(n: number): string {
  const units = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
  let at = 0;
  while (n >= 1024 && at < units.length - 1) {
    n /= 1024;
    at += 1;
  }
  return `${at === 0 || n >= 100 ? Math.round(n) : n.toFixed(1)} ${units[at]}`;
}

export function duration(us: number): string {
  if (us < 1000) return `${Math.round(us)} µs`;
  const ms = us / 1000;
  if (ms < 1000) return `${ms < 10 ? ms.toFixed(1) : Math.round(ms)} ms`;
  const s = ms / 1000;
  if (s < 60) return `${s < 10 ? s.toFixed(1) : Math.round(s)} s`;
  if (s < 3600) return `${Math.floor(s / 60)}m ${String(Math.floor(s % 60)).padStart(2, "0")}s`;
  if (s < 86_400) return `${Math.floor(s / 3600)}h ${String(Math.floor((s % 3600) / 60)).padStart(2, "0")}m`;
  return `${Math.floor(s / 86_400)}d ${Math.floor((s % 86_400) / 3600)}h`;
}

export type TimeStyle = "relative" | "local" | "utc";
export const timeStyle = signal<TimeStyle>((localStorage.getItem("times") as TimeStyle) || "relative");
export function nextTimeStyle(): void {
  const styles: TimeStyle[] = ["relative", "local", "utc"];
  timeStyle.value = styles[(styles.indexOf(timeStyle.value) + 1) % 3];
  localStorage.setItem("times", timeStyle.value);
}

const two = (n: number) => String(n).padStart(2, "0");

export function absolute(us: number, utc: boolean): string {
  const at = new Date(us / 1000);
  if (Number.isNaN(at.getTime())) return String(us);
  if (utc) return at.toISOString().replace("T", " ").replace(/\.000Z$|Z$/, (end) => (end === "Z" ? "Z" : "Z"));
  return `${at.getFullYear()}-${two(at.getMonth() + 1)}-${two(at.getDate())} ${two(at.getHours())}:${two(at.getMinutes())}:${two(at.getSeconds())}`;
}

export function relative(us: number, nowMs: number): string {
  const gone = nowMs - us / 1000;
  const size = Math.abs(gone);
  const text = size < 1000 ? "now" : size < 60_000 ? `${Math.floor(size / 1000)}s` : size < 3_600_000 ? `${Math.floor(size / 60_000)}m` : size < 86_400_000 ? `${Math.floor(size / 3_600_000)}h ${Math.floor((size % 3_600_000) / 60_000)}m` : `${Math.floor(size / 86_400_000)}d`;
  if (text === "now") return text;
  return gone > 0 ? `${text} ago` : `in ${text}`;
}

/** Bytes that were base64. */
export function unbase64(text: string): Uint8Array {
  return Uint8Array.from(atob(text), (each) => each.charCodeAt(0));
}

export function hex(data: Uint8Array, most = 4096): string {
  const lines: string[] = [];
  for (let at = 0; at < Math.min(data.length, most); at += 16) {
    const row = [...data.subarray(at, at + 16)];
    const digits = row.map((each) => each.toString(16).padStart(2, "0")).join(" ").padEnd(47);
    const text = row.map((each) => (each >= 32 && each < 127 ? String.fromCharCode(each) : ".")).join("");
    lines.push(`${at.toString(16).padStart(6, "0")}  ${digits}  ${text}`);
  }
  if (data.length > most) lines.push(`… ${count(data.length - most)} more bytes`);
  return lines.join("\n");
}
