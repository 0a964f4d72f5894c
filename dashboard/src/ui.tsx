// The parts that all screens are made of.
import { signal } from "@preact/signals";
import type { ComponentChildren, JSX } from "preact";
import { useEffect, useId, useRef, useState } from "preact/hooks";
import type { Problem } from "./api";
import { absolute, compact, relative, timeStyle } from "./format";
import { refine } from "./route";

export const now = signal(Date.now());
setInterval(() => !document.hidden && (now.value = Date.now()), 1000);

export function Time({ us }: { us: number | null | undefined }) {
  if (us === null || us === undefined) return <span class="faint">–</span>;
  const style = timeStyle.value;
  const shown = style === "relative" ? relative(us, now.value) : absolute(us, style === "utc");
  return <time dateTime={absolute(us, true)} title={`${absolute(us, false)} here\n${absolute(us, true)}`} class="nowrap">{shown}</time>;
}

export function Head({ title, crumbs, children }: { title: ComponentChildren; crumbs?: [string, string][]; children?: ComponentChildren }) {
  return (
    <div class="head">
      <div class="grow">
        {crumbs && <nav class="crumbs" aria-label="Breadcrumb">{crumbs.map(([label, to]) => <><a href={to}>{label}</a><span aria-hidden="true">/</span></>)}</nav>}
        <h1>{title}</h1>
      </div>
      {children && <div class="row actions">{children}</div>}
    </div>
  );
}

export function Panel({ title, note, actions, children, foot, label }: { title?: ComponentChildren; note?: ComponentChildren; actions?: ComponentChildren; children: ComponentChildren; foot?: ComponentChildren; label?: string }) {
  return (
    <section class="panel" aria-label={label ?? (typeof title === "string" ? title : undefined)}>
      {(title || actions) && <header><h2>{title}</h2>{note && <span class="faint">{note}</span>}{actions && <div class="row actions">{actions}</div>}</header>}
      {children}
      {foot && <div class="foot">{foot}</div>}
    </section>
  );
}

export function Card({ label, value, unit, note, to, tone }: { label: ComponentChildren; value: ComponentChildren; unit?: string; note?: ComponentChildren; to?: string; tone?: string }) {
  const inside = <><div class="label">{label}</div><div class={`value ${tone ?? ""}`}>{value}{unit && <small>{unit}</small>}</div><div class="note">{note ?? "\u00a0"}</div></>;
  return to ? <a class="card" href={to}>{inside}</a> : <div class="card">{inside}</div>;
}

export const Num = ({ n }: { n: number }) => <td class={n === 0 ? "num zero" : "num"} title={String(n)}>{compact(n)}</td>;

export function Failed({ problem }: { problem?: Problem }) {
  return problem ? <div class="note-box bad" role="alert"><span class="any">{problem.message}</span></div> : null;
}

export function Empty({ title, children }: { title: string; children?: ComponentChildren }) {
  return <div class="empty"><b>{title}</b>{children}</div>;
}

export function Loading() {
  const [late, setLate] = useState(false);
  useEffect(() => {
    const timer = setTimeout(() => setLate(true), 300);
    return () => clearTimeout(timer);
  }, []);
  return <div class="empty" role="status">{late ? "Loading…" : "\u00a0"}</div>;
}

export interface Column { id: string; label: string; num?: boolean; sorts?: boolean; small?: boolean }

export function Head2({ columns, sort, descending, onSort }: { columns: Column[]; sort?: string; descending?: boolean; onSort?: (id: string) => void }) {
  return (
    <thead><tr>{columns.map((each) => {
      const order = each.id === sort ? (descending ? "descending" : "ascending") : undefined;
      const arrow = order && <span aria-hidden="true">{descending ? " ↓" : " ↑"}</span>;
      return (
        <th key={each.id} scope="col" class={`${each.num ? "num" : ""} ${each.small ? "hide-small" : ""}`} aria-sort={order}>
          {each.sorts ? <button type="button" onClick={() => onSort?.(each.id)}>{each.label}{arrow}</button> : each.label || <span class="sr">Actions</span>}
        </th>
      );
    })}</tr></thead>
  );
}

/** Words that go into the address a moment after they were typed. */
export function Search({ name, label, value, reset = {} }: { name: string; label: string; value: string; reset?: Record<string, null> }) {
  const [text, setText] = useState(value);
  const timer = useRef<number | undefined>(undefined);
  useEffect(() => setText(value), [value]);
  const set = (typed: string) => {
    setText(typed);
    clearTimeout(timer.current);
    timer.current = setTimeout(() => refine({ ...reset, [name]: typed }), 180);
  };
  return <input class="search" type="search" data-search aria-label={label} placeholder={label} value={text} spellcheck={false} onInput={(event) => set(event.currentTarget.value)} />;
}

export function Pager({ offset, limit, total, what, onMove }: { offset: number; limit: number; total: number; what?: string; onMove: (offset: number) => void }) {
  if (total <= limit && offset === 0) return <span>{what ? `of ${compact(total)} ${what}` : `${compact(total)} in all`}</span>;
  const last = Math.min(offset + limit, total);
  return (
    <nav class="row" aria-label="Pages">
      <button type="button" class="small" disabled={offset === 0} onClick={() => onMove(Math.max(0, offset - limit))}>Previous</button>
      <span class="num">{compact(Math.min(offset + 1, total))}–{compact(last)} of {compact(total)}{what && ` ${what}`}</span>
      <button type="button" class="small" disabled={last >= total} onClick={() => onMove(offset + limit)}>Next</button>
    </nav>
  );
}

export function Segments<T extends string>({ label, value, options, onPick }: { label: string; value: T; options: [T, string][]; onPick: (value: T) => void }) {
  return <div class="segments" role="group" aria-label={label}>{options.map(([id, text]) => <button key={id} type="button" class="small" aria-pressed={id === value} onClick={() => onPick(id)}>{text}</button>)}</div>;
}

export function Field({ label, hint, wide, children }: { label: string; hint?: ComponentChildren; wide?: boolean; children: ComponentChildren }) {
  return <label class={`field ${wide ? "wide" : ""}`}><span>{label}{hint && <span class="hint"> · {hint}</span>}</span>{children}</label>;
}

export function Spark({ values, label }: { values: number[]; label: string }) {
  const most = Math.max(...values, 1);
  const points = values.map((value, at) => `${((at / (values.length - 1)) * 96).toFixed(1)},${(19 - (value / most) * 17).toFixed(1)}`);
  return (
    <svg class="spark" viewBox="0 0 96 20" role="img" aria-label={label}>
      {values.some(Boolean) && <path class="area" d={`M0,20L${points.join("L")}L96,20Z`} />}
      <path d={`M${points.join("L")}`} />
    </svg>
  );
}

export async function copy(text: string): Promise<void> {
  try {
    await navigator.clipboard.writeText(text);
    toast("Copied");
  } catch {
    toast("The browser does not allow to copy", true);
  }
}

export function download(name: string, text: string): void {
  const url = URL.createObjectURL(new Blob([text], { type: "application/x-ndjson" }));
  const link = document.createElement("a");
  link.href = url;
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(url), 1000);
}

// Short messages at the edge.

interface Told { id: number; text: string; bad: boolean }
const toasts = signal<Told[]>([]);
let told = 0;

export function toast(text: string, bad = false): void {
  const id = ++told;
  toasts.value = [...toasts.value.slice(-3), { id, text, bad }];
  setTimeout(() => forget(id), bad ? 8000 : 3000);
}
const forget = (id: number) => (toasts.value = toasts.value.filter((each) => each.id !== id));

export function Toasts() {
  return (
    <div class="toasts" role="status" aria-live="polite">
      {toasts.value.map((each) => <div key={each.id} class={`toast ${each.bad ? "bad" : ""}`}><span>{each.text}</span><button type="button" aria-label="Dismiss" onClick={() => forget(each.id)}>✕</button></div>)}
    </div>
  );
}

/** Do it, and say what came of it. */
export async function doing(work: () => Promise<unknown>, done?: string): Promise<boolean> {
  try {
    await work();
    if (done) toast(done);
    return true;
  } catch (error) {
    toast((error as Error).message, true);
    return false;
  }
}

// Dialogs.

export const dialog = signal<(() => JSX.Element) | null>(null);
export const closeDialog = () => (dialog.value = null);

export function Dialogs() {
  const Shown = dialog.value;
  return Shown ? <Shown /> : null;
}

export function Dialog({ title, wide, children, footer, onSubmit }: { title: ComponentChildren; wide?: boolean; children: ComponentChildren; footer?: ComponentChildren; onSubmit?: () => Promise<boolean | void> }) {
  const ref = useRef<HTMLDialogElement>(null);
  const id = useId();
  const [busy, setBusy] = useState(false);
  useEffect(() => {
    const before = document.activeElement as HTMLElement | null;
    ref.current?.showModal();
    return () => before?.focus?.();
  }, []);
  const submit = async (event: Event) => {
    event.preventDefault();
    if (!onSubmit || busy) return;
    setBusy(true);
    try {
      if ((await onSubmit()) !== false) closeDialog();
    } finally {
      setBusy(false);
    }
  };
  return (
    <dialog ref={ref} class={wide ? "wide" : ""} aria-labelledby={id} onClose={closeDialog} onClick={(event) => event.target === ref.current && closeDialog()}>
      <form onSubmit={submit}>
        <header><h2 id={id}>{title}</h2></header>
        <div class="body">{children}</div>
        <footer>{footer ?? <button type="button" onClick={closeDialog}>Close</button>}</footer>
      </form>
    </dialog>
  );
}

interface Question { title: string; text: ComponentChildren; action: string; type?: string; danger?: boolean; work: () => Promise<unknown>; done?: string }

/** Ask before it is done; with `type` the person has to type that. */
export function confirm(question: Question): void {
  dialog.value = () => {
    const [typed, setTyped] = useState("");
    const ready = question.type === undefined || typed === question.type;
    return (
      <Dialog title={question.title} onSubmit={() => doing(question.work, question.done)}
        footer={<><button type="button" onClick={closeDialog}>Cancel</button><button type="submit" class={question.danger === false ? "primary" : "danger primary"} disabled={!ready}>{question.action}</button></>}>
        <div class="muted">{question.text}</div>
        {question.type !== undefined && <Field label={`Type ${question.type} to go on`}><input autofocus autocomplete="off" spellcheck={false} value={typed} onInput={(event) => setTyped(event.currentTarget.value)} /></Field>}
      </Dialog>
    );
  };
}
