// A message, as people look at it. All of it is text to the browser, whatever is in it.
import { signal } from "@preact/signals";
import type { ComponentChildren } from "preact";
import { enc, may, topicPath, post } from "./api";
import { bytes, hex, unbase64 } from "./format";
import { href } from "./route";
import type { Found, HeaderValue, Message } from "./types";
import { copy, Segments, Time } from "./ui";

export type Look = "auto" | "text" | "hex";
export const look = signal<Look>("auto");

export const keyText = (m: Message) => m.key ?? (m.key_base64 === undefined ? null : `0x${[...unbase64(m.key_base64).subarray(0, 24)].map((b) => b.toString(16).padStart(2, "0")).join("")}`);
export const headerText = (value: HeaderValue) => (value === null ? "null" : typeof value === "string" ? value : `base64:${value.base64}`);

export function preview(m: Message): string {
  if (m.value !== undefined) return m.value.slice(0, 300);
  if (m.value_base64 !== undefined) return hex(unbase64(m.value_base64.slice(0, 64)), 32).replace(/\s+/g, " ");
  return "null";
}

const TOKEN = /"(?:[^"\\]|\\.)*"|-?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?|true|false|null|[{}[\],:]|\s+/gy;

/** JSON with line breaks and colours. It is not parsed and written again: numbers stay as they are. */
export function pretty(text: string): ComponentChildren[] | null {
  if (text.length > 200_000) return null;
  try {
    JSON.parse(text);
  } catch {
    return null;
  }
  const parts: ComponentChildren[] = [];
  let depth = 0;
  let plain = "";
  const tokens = [...text.matchAll(TOKEN)].map((each) => each[0]).filter((each) => each.trim());
  const flush = () => {
    if (plain) parts.push(plain);
    plain = "";
  };
  tokens.forEach((token, at) => {
    const line = () => (plain += `\n${"  ".repeat(depth)}`);
    if (token === "{" || token === "[") {
      plain += token;
      if (tokens[at + 1] !== "}" && tokens[at + 1] !== "]") {
        depth += 1;
        line();
      }
    } else if (token === "}" || token === "]") {
      if (tokens[at - 1] !== "{" && tokens[at - 1] !== "[") {
        depth -= 1;
        line();
      }
      plain += token;
    } else if (token === ",") {
      plain += ",";
      line();
    } else if (token === ":") {
      plain += ": ";
    } else {
      flush();
      const kind = token[0] === '"' ? (tokens[at + 1] === ":" ? "tk" : "ts") : /^[tfn]/.test(token) ? "tb" : "tn";
      parts.push(<span class={kind}>{token}</span>);
    }
  });
  flush();
  return parts;
}

export function Value({ m, decoded }: { m: Message; decoded?: string | null }) {
  if (decoded && look.value === "auto") return <pre class="code">{pretty(decoded) || decoded}</pre>;
  const raw = m.value_base64 === undefined ? null : unbase64(m.value_base64);
  if (m.value === undefined && raw === null) return <pre class="code faint">null</pre>;
  if (raw !== null) {
    if (look.value === "text") return <pre class="code">{new TextDecoder().decode(raw)}</pre>;
    return <pre class="code hex">{hex(raw)}</pre>;
  }
  if (look.value === "hex") return <pre class="code hex">{hex(new TextEncoder().encode(m.value))}</pre>;
  return <pre class="code">{(look.value === "auto" && pretty(m.value!)) || m.value}</pre>;
}

export const sizeOf = (m: Message) => (m.value_base64 !== undefined ? Math.floor((m.value_base64.length * 3) / 4) : new TextEncoder().encode(m.value ?? "").length);

export function MessageDetail({ m, partition, namespace, topic, found, children }: { m: Message; partition: number; namespace: string; topic: string; found?: Found; children?: ComponentChildren }) {
  const headers = Object.entries(m.headers ?? {});
  return (
    <div class="detail">
      <div class="row">
        <Segments label="Show the value as" value={look.value} options={[["auto", "JSON"], ["text", "Text"], ["hex", "Hex"]]} onPick={(picked) => (look.value = picked)} />
        <button type="button" class="small" onClick={() => copy(m.value ?? m.value_base64 ?? "")}>Copy value</button>
        <button type="button" class="small" onClick={() => copy(JSON.stringify({ partition, ...m }, null, 2))}>Copy message</button>
        {may("look") && m.id && <a class="button small" href={href(["traces"], { id: m.id, ns: namespace === "default" ? "" : namespace })}>Trace</a>}
        {may("publish") && <a class="button small" href={href(["t", namespace, topic, "publish"], { from: `${partition}:${m.offset}` })}>Edit and publish…</a>}
        {children}
      </div>
      <Value m={m} decoded={found?.decoded} />
      <dl class="kv">
        <dt>Key</dt><dd class="mono">{keyText(m) ?? <span class="faint">none</span>}</dd>
        <dt>Place</dt><dd class="mono">partition {partition}, offset {m.offset}</dd>
        {found?.schema_id ? <><dt>Schema</dt><dd>id {found.schema_id}{!found.decoded && <span class="bad"> · the value does not fit it</span>}</dd></> : null}
        <dt>Id</dt><dd class="mono">{m.id}</dd>
        <dt>Time</dt><dd><Time us={m.timestamp_us} /> {m.expires_at_us !== undefined && <span class="faint">· expires <Time us={m.expires_at_us} /></span>}</dd>
        <dt>Priority</dt><dd>{m.priority ?? "normal"}</dd>
        <dt>Size</dt><dd>{bytes(sizeOf(m))}</dd>
        {headers.length > 0 && <><dt>Headers</dt><dd class="stack" style={{ gap: "2px" }}>{headers.map(([name, value]) => <div class="mono" key={name}><span class="faint">{name}</span> {headerText(value)}</div>)}</dd></>}
      </dl>
    </div>
  );
}

/** A message as it is published: also one of bytes. */
export const again = (m: Message) => ({ value: m.value, value_base64: m.value_base64, key: m.key, key_base64: m.key_base64, headers: m.headers, priority: m.priority });

export const publish = (namespace: string, topic: string, message: unknown) => post<{ partition?: number; offset?: number; deliver_at_us?: number; duplicate?: boolean; id: string }>(`${topicPath(namespace, topic)}/messages`, message);

export const groupPath = (namespace: string, topic: string, group: string) => `${topicPath(namespace, topic)}/groups/${enc(group)}`;
