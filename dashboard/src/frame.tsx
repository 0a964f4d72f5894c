// What is around every screen: where one can go, who one is, how things are shown.
import { signal } from "@preact/signals";
import type { ComponentChildren } from "preact";
import { ask, may, root, session, withQuery } from "./api";
import { compact, nextTimeStyle, timeStyle } from "./format";
import { connected, useGet, useLive } from "./live";
import { go, href, q, refine, route } from "./route";
import { choice, pickTheme, type ThemeChoice } from "./theme";
import type { Overview } from "./types";
import { Dialog, dialog, doing } from "./ui";

const menuOpen = signal(false);

export function Brand({ version }: { version?: string }) {
  return (
    <div class="brand">
      <svg width="20" height="20" viewBox="0 0 32 32" aria-hidden="true"><rect width="32" height="32" rx="8" fill="var(--accent)" /><path d="M8 10h16M8 16h11M8 22h6" stroke="var(--on-accent)" stroke-width="3" stroke-linecap="round" /></svg>
      Penstock {version && <span class="version">{version}</span>}
    </div>
  );
}

/** The namespace that is looked at; null: all of them. */
export function namespace(): string | null {
  return session.value?.namespace ?? (q("ns") || null);
}

interface Place { id: string; label: string; key: string; right?: string; count?: (all: Overview) => number; bad?: boolean }

export const PLACES: (Place | string)[] = [
  { id: "overview", label: "Overview", key: "o" },
  { id: "topics", label: "Topics", key: "t", count: (all) => all.summary.topics },
  { id: "groups", label: "Groups and lag", key: "g", count: (all) => all.summary.groups + all.summary.stream_groups },
  { id: "dead", label: "Dead letters", key: "d", count: (all) => all.summary.dead, bad: true },
  { id: "traces", label: "Traces", key: "r", right: "look" },
  { id: "transactions", label: "Transactions", key: "x", right: "look" },
  { id: "schemas", label: "Schemas", key: "c" },
  "Time",
  { id: "delayed", label: "Delayed", key: "l", count: (all) => all.summary.delayed },
  { id: "schedules", label: "Schedules", key: "s", right: "look" },
  "Doors",
  { id: "webhooks", label: "Webhooks", key: "w", count: (all) => all.webhooks.length, bad: true },
  { id: "keys", label: "API keys", key: "k", right: "manage" },
  "Tenants",
  { id: "namespaces", label: "Namespaces", key: "n", right: "describe" },
  { id: "audit", label: "Audit log", key: "a", right: "manage" },
];

const HOME: Record<string, string> = { t: "topics", group: "groups", webhook: "webhooks", schedule: "schedules", schema: "schemas", namespace: "namespaces" };

export function Frame({ children }: { children: ComponentChildren }) {
  const who = session.value!;
  const ns = namespace();
  const overview = useLive<Overview>(withQuery(`${root(ns)}/overview`, {}), 2).data;
  const here = HOME[route.value.path[0]] ?? route.value.path[0] ?? "overview";
  const leave = () => doing(async () => {
    await ask("DELETE", "v1/session");
    session.value = null;
  });
  return (
    <div class="frame">
      <a class="skip" href="#main" onClick={(event) => { event.preventDefault(); document.getElementById("main")?.focus(); }}>Skip to content</a>
      <div class="top">
        <button type="button" class="plain" aria-label="Menu" aria-expanded={menuOpen.value} onClick={() => (menuOpen.value = true)}><svg width="16" height="16" viewBox="0 0 16 16" aria-hidden="true"><path d="M2 4h12M2 8h12M2 12h12" stroke="currentColor" stroke-width="1.6" stroke-linecap="round" /></svg></button>
        <Brand />
      </div>
      {menuOpen.value && <div class="shade" onClick={() => (menuOpen.value = false)} />}
      <aside class={`side ${menuOpen.value ? "open" : ""}`} onClick={(event) => (event.target as Element).closest("a") && (menuOpen.value = false)}>
        <Brand version={who.version} />
        {who.namespace === null ? <Namespaces /> : <div class="nav-group">namespace {who.namespace}</div>}
        <nav class="nav" aria-label="Main">
          {PLACES.map((each) => {
            if (typeof each === "string") return <div class="nav-group" key={each}>{each}</div>;
            if (each.right && !may(each.right)) return null;
            if (each.id === "keys" && who.namespace !== null) return null;
            const n = overview && each.count ? each.count(overview) : 0;
            return <a key={each.id} href={href([each.id], { ns: q("ns") })} aria-current={here === each.id ? "page" : undefined}>{each.label}{n > 0 && <span class={`count ${each.bad ? "bad" : ""}`}>{compact(n)}</span>}</a>;
          })}
        </nav>
        <div class="side-foot">
          <div class="row"><span title={connected.value ? "Figures come as they change" : "Asking every few seconds"} class="row tight" style={{ gap: "6px" }}><i class={`dot ${connected.value ? "good" : "warn"}`} />{connected.value ? "live" : "connecting"}</span>
            <button type="button" class="plain small" onClick={nextTimeStyle} title="How times are shown (u)">{timeStyle.value === "utc" ? "UTC" : timeStyle.value}</button></div>
          <div class="row"><select aria-label="Theme" value={choice.value} onChange={(event) => pickTheme(event.currentTarget.value as ThemeChoice)}><option value="auto">Auto</option><option value="light">Light</option><option value="dark">Dark</option></select>
            <button type="button" class="plain small" onClick={help}>Keys <kbd>?</kbd></button></div>
          <div class="row"><a href="docs" class="link">API description</a>{who.keys && <button type="button" class="plain small" onClick={leave}>Log out</button>}</div>
          {who.keys && <div class="clip" title={`${who.name} (${who.role})`}>{who.name} · {who.role}</div>}
        </div>
      </aside>
      <main class="main" id="main" tabIndex={-1}>{children}</main>
    </div>
  );
}

/** Screens that are about one namespace. */
const OF_ONE = ["traces", "transactions", "schemas", "schedules", "webhooks"];

function Namespaces() {
  const found = useGet<{ namespaces: string[] }>("v1/namespaces").data?.namespaces ?? [];
  if (found.length < 2 && !q("ns")) return null;
  const single = OF_ONE.includes(route.value.path[0]);
  return (
    <select aria-label="Namespace" value={q("ns") || (single ? "default" : "")} style={{ margin: "0 8px 8px" }} onChange={(event) => (["t", "group", "webhook", "schedule", "schema", "namespace"].includes(route.value.path[0]) ? go(["topics"], { ns: event.currentTarget.value }) : refine({ ns: event.currentTarget.value, offset: null, before: null }))}>
      {!single && <option value="">All namespaces</option>}
      {found.map((each) => <option key={each} value={each}>{each}</option>)}
    </select>
  );
}

export function help(): void {
  dialog.value = () => (
    <Dialog title="Keys">
      <div class="keys-help">
        {PLACES.map((each) => typeof each !== "string" && <><span><kbd>g</kbd> <kbd>{each.key}</kbd></span><span>{each.label}</span></>)}
        <kbd>/</kbd><span>Search on this screen</span>
        <kbd>r</kbd><span>Load this screen again</span>
        <kbd>u</kbd><span>Times: relative, local, UTC</span>
        <kbd>Esc</kbd><span>Close a dialog</span>
        <kbd>?</kbd><span>This list</span>
      </div>
    </Dialog>
  );
}

/** `g t` and the like; not while somebody types. */
export function listenToKeys(): void {
  let first = 0;
  addEventListener("keydown", (event) => {
    const target = event.target as HTMLElement;
    if (event.ctrlKey || event.metaKey || event.altKey || dialog.value || !session.value) return;
    if (target.closest("input, textarea, select, [contenteditable]")) {
      if (event.key === "Escape") target.blur();
      return;
    }
    const place = PLACES.find((each) => typeof each !== "string" && each.key === event.key);
    if (Date.now() - first < 1200 && place && typeof place !== "string") {
      first = 0;
      event.preventDefault();
      go([place.id], { ns: q("ns") });
    } else if (event.key === "g") {
      first = Date.now();
    } else if (event.key === "/") {
      const field = document.querySelector<HTMLInputElement>("[data-search]");
      if (field) {
        event.preventDefault();
        field.focus();
        field.select();
      }
    } else if (event.key === "?") {
      help();
    } else if (event.key === "u") {
      nextTimeStyle();
    } else if (event.key === "r") {
      route.value = { ...route.value };
      dispatchEvent(new Event("reload-screen"));
    }
  });
}
