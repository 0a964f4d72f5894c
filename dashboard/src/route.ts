// Where we are: `#/path/of/names?filters`. Everything that somebody may want to link to is in it.
import { signal } from "@preact/signals";

export interface Route { path: string[]; query: URLSearchParams }

function read(): Route {
  const [path, query] = location.hash.replace(/^#\/?/, "").split("?", 2);
  const names = path.split("/").filter(Boolean).map(decoded);
  return { path: names, query: new URLSearchParams(query ?? "") };
}

function decoded(name: string): string {
  try {
    return decodeURIComponent(name);
  } catch {
    return name;
  }
}

export const route = signal<Route>(read());
addEventListener("hashchange", () => (route.value = read()));

type Query = Record<string, string | number | null | undefined>;

export function href(path: string[], query: Query = {}): string {
  const given = Object.entries(query).filter(([, value]) => value !== null && value !== undefined && value !== "");
  const tail = given.length ? `?${new URLSearchParams(given.map(([name, value]) => [name, String(value)]))}` : "";
  return `#/${path.map(encodeURIComponent).join("/")}${tail}`;
}

export function go(path: string[], query: Query = {}): void {
  location.hash = href(path, query);
}

/** Change some filters; without a new entry in the history of the browser. */
export function refine(changes: Query): void {
  const query = new URLSearchParams(route.value.query);
  for (const [name, value] of Object.entries(changes)) {
    if (value === null || value === undefined || value === "") query.delete(name);
    else query.set(name, String(value));
  }
  const tail = query.size ? `?${query}` : "";
  history.replaceState(null, "", `#/${route.value.path.map(encodeURIComponent).join("/")}${tail}`);
  route.value = read();
}

export const q = (name: string) => route.value.query.get(name) ?? "";
