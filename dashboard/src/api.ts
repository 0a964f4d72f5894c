// Questions to the API. All addresses are relative to the page, so that any prefix works.
import { signal } from "@preact/signals";
import type { Session } from "./types";

export const session = signal<Session | null | undefined>(undefined); // undefined: not known yet

export class Problem extends Error {
  constructor(
    readonly status: number,
    readonly code: string,
    message: string,
  ) {
    super(message);
  }
}

export async function ask<T>(method: string, path: string, body?: unknown, signal?: AbortSignal): Promise<T> {
  const sent = method === "GET" || method === "DELETE" ? undefined : JSON.stringify(body ?? {});
  const asker = session.value;
  let answer: Response;
  try {
    answer = await fetch(path, {
      method,
      body: sent,
      headers: sent === undefined ? {} : { "content-type": "application/json" },
      credentials: "same-origin",
      signal,
    });
  } catch (error) {
    if ((error as Error).name === "AbortError") throw error;
    throw new Problem(0, "unreachable", "The server does not answer.");
  }
  if (answer.status === 204) return undefined as T;
  const text = await answer.text();
  let data: unknown;
  try {
    data = JSON.parse(text);
  } catch {
    throw new Problem(answer.status, "unknown", `The server answered ${answer.status} with something that is not JSON.`);
  }
  if (!answer.ok) {
    const said = data as { code?: string; detail?: string };
    // Not if somebody has logged in since it was asked.
    if (answer.status === 401 && path !== "v1/session" && session.value === asker) session.value = null;
    throw new Problem(answer.status, said.code ?? "unknown", said.detail ?? `The server answered ${answer.status}.`);
  }
  return data as T;
}

export const get = <T>(path: string, signal?: AbortSignal) => ask<T>("GET", path, undefined, signal);
export const post = <T>(path: string, body?: unknown) => ask<T>("POST", path, body);

export const enc = encodeURIComponent;

/** The API of a namespace; null: of all, or of the one that the key is good for. */
export function root(namespace: string | null): string {
  return namespace === null ? "v1" : `v1/namespaces/${enc(namespace)}`;
}

export const topicPath = (namespace: string, topic: string) => `${root(namespace)}/topics/${enc(topic)}`;

/** A path with those parameters that have a value. */
export function withQuery(path: string, query: Record<string, string | number | boolean | null | undefined>): string {
  const given = Object.entries(query).filter(([, value]) => value !== null && value !== undefined && value !== "");
  const sign = path.includes("?") ? "&" : "?";
  return given.length ? `${path}${sign}${new URLSearchParams(given.map(([name, value]) => [name, String(value)]))}` : path;
}

export function may(right: string): boolean {
  return session.value?.rights.includes(right) ?? false;
}
