// One WebSocket for everything that is live. A hidden tab watches nothing.
import { signal } from "@preact/signals";
import { useEffect, useState } from "preact/hooks";
import { get, Problem, session } from "./api";

export const connected = signal(false);

interface Watch { path: string; every: number; fields: Record<string, unknown>; tell: (data?: unknown, problem?: Problem) => void }

const watches = new Map<string, Watch>();
let socket: WebSocket | null = null;
let numbers = 0;
let failures = 0;
let retry: number | undefined;

function say(what: unknown): void {
  if (socket?.readyState === WebSocket.OPEN && connected.value) socket.send(JSON.stringify(what));
}

function subscribe(id: string, watch: Watch): void {
  watch.fields = {};
  say({ type: "subscribe", id, mode: "watch", path: watch.path, every: `${watch.every}s` });
}

function connect(): void {
  if (socket !== null || document.hidden || watches.size === 0 || !session.value) return;
  clearTimeout(retry);
  const url = new URL("v1/ws", location.href);
  url.protocol = url.protocol.replace("http", "ws");
  url.hash = "";
  const own = new WebSocket(url, ["penstock.v1.json"]);
  socket = own;
  own.onmessage = ({ data }) => heard(JSON.parse(data as string));
  own.onclose = (event) => {
    if (socket !== own) return;
    socket = null;
    connected.value = false;
    const asker = session.value;
    if (event.code === 4401) void get("v1/session").catch(() => session.value === asker && (session.value = null));
    failures += 1;
    retry = setTimeout(connect, Math.min(10_000, 250 * 2 ** Math.min(failures, 6)));
  };
}

function heard(said: { type: string; id?: string; fields?: Record<string, unknown>; gone?: string[]; problem?: { status: number; code: string; detail: string } }): void {
  if (said.type === "hello") {
    connected.value = true;
    failures = 0;
    for (const [id, watch] of watches) subscribe(id, watch);
    return;
  }
  const watch = watches.get(said.id ?? "");
  if (watch === undefined) return;
  if (said.type === "changed") {
    watch.fields = { ...watch.fields, ...said.fields };
    for (const name of said.gone ?? []) delete watch.fields[name];
    watch.tell(watch.fields);
  } else if (said.type === "problem" && said.problem) {
    watch.tell(undefined, new Problem(said.problem.status, said.problem.code, said.problem.detail));
  }
}

function disconnect(): void {
  const own = socket;
  socket = null;
  connected.value = false;
  clearTimeout(retry);
  own?.close();
}

document.addEventListener("visibilitychange", () => (document.hidden ? disconnect() : connect()));
session.subscribe((now) => (now ? connect() : disconnect()));
// Where no WebSocket gets through, ask now and then.
setInterval(() => {
  if (connected.value || document.hidden || !session.value) return;
  for (const watch of watches.values()) void get(watch.path.slice(1)).then((data) => watch.tell(data), (problem) => watch.tell(undefined, problem as Problem));
}, 5000);

export interface Live<T> { data?: T; problem?: Problem }

/** The answer to a GET, as it is now. `path` as of `api.ts`; null: nothing. */
export function useLive<T>(path: string | null, every = 1): Live<T> {
  const [state, setState] = useState<Live<T> & { path?: string | null }>({});
  useEffect(() => {
    if (path === null) return;
    const id = `w${++numbers}`;
    const tell = (data?: unknown, problem?: Problem) => setState((old) => ({ path, data: (data as T) ?? (old.path === path ? old.data : undefined), problem }));
    const watch = { path: `/${path}`, every, fields: {}, tell };
    watches.set(id, watch);
    if (connected.value) subscribe(id, watch);
    else {
      connect();
      // Sooner than the socket is there.
      void get(path).then((data) => watches.has(id) && !Object.keys(watch.fields).length && tell(data), (problem) => tell(undefined, problem as Problem));
    }
    return () => {
      watches.delete(id);
      say({ type: "unsubscribe", id });
    };
  }, [path, every]);
  return state.path === path ? state : { data: undefined, problem: undefined };
}

export interface Fetched<T> extends Live<T> { loading: boolean; reload: () => void }

/** The answer to a GET, asked once, and again by `reload`. */
export function useGet<T>(path: string | null): Fetched<T> {
  const [state, setState] = useState<Live<T> & { path?: string | null; loading: boolean }>({ loading: true });
  const [turn, setTurn] = useState(0);
  useEffect(() => {
    if (path === null) return;
    const abort = new AbortController();
    setState((old) => ({ ...old, loading: true }));
    get<T>(path, abort.signal).then(
      (data) => setState({ path, data, loading: false }),
      (problem: Error) => problem.name !== "AbortError" && setState({ path, problem: problem as Problem, loading: false }),
    );
    return () => abort.abort();
  }, [path, turn]);
  return { data: state.data, problem: state.path === path ? state.problem : undefined, loading: state.loading || state.path !== path, reload: () => setTurn((n) => n + 1) };
}
