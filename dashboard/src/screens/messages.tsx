import { useEffect, useState } from "preact/hooks";
import { get, may, Problem, topicPath, withQuery } from "../api";
import { bytes, compact } from "../format";
import { again, keyText, MessageDetail, preview, publish } from "../message";
import { q, refine } from "../route";
import type { Found, FoundPage } from "../types";
import { confirm, download, Empty, Failed, Field, Head2, Panel, Segments, Time } from "../ui";
import type { Of } from "./topic";

const FILTERS = ["key", "value", "header", "pointer", "equals", "priority", "partition", "at", "until"];

/** What was typed as a moment goes as RFC 3339; offsets and words go as they are. */
function position(text: string): string {
  const at = /^\d+$|^earliest$|^latest$/.test(text) ? NaN : Date.parse(text);
  return Number.isNaN(at) ? text : new Date(at).toISOString();
}

export function Messages({ namespace, topic, stats }: Of) {
  const backward = q("order") !== "oldest";
  const query = Object.fromEntries(FILTERS.map((name) => [name, q(name)]));
  const path = withQuery(`${topicPath(namespace, topic)}/search`, { ...query, at: position(query.at), until: position(query.until), equals: query.pointer ? query.equals : "", backward, limit: 50 });
  const [found, setFound] = useState<Found[]>([]);
  const [next, setNext] = useState<string | null>(null);
  const [state, setState] = useState<{ busy: boolean; problem?: Problem; scanned: number; bytes: number }>({ busy: true, scanned: 0, bytes: 0 });
  const [open, setOpen] = useState<string | null>(null);
  const [turn, setTurn] = useState(0);
  const load = async (after: string | null, before: Found[], signal?: AbortSignal) => {
    setState((old) => ({ ...old, busy: true, problem: undefined, ...(after ? {} : { scanned: 0, bytes: 0 }) }));
    try {
      const page = await get<FoundPage>(withQuery(path, { after }), signal);
      setFound([...before, ...page.found]);
      setNext(page.next);
      setState((old) => ({ busy: false, scanned: old.scanned + page.scanned, bytes: old.bytes + page.scanned_bytes }));
    } catch (error) {
      if ((error as Error).name !== "AbortError") setState((old) => ({ ...old, busy: false, problem: error as Problem }));
    }
  };
  useEffect(() => {
    const abort = new AbortController();
    setState((old) => ({ ...old, busy: true }));
    const timer = setTimeout(() => void load(null, [], abort.signal), 150);
    return () => {
      clearTimeout(timer);
      abort.abort();
    };
  }, [path, turn]);
  const field = (name: string, label: string, hint?: string, placeholder = "") => (
    <Field label={label} hint={hint}><input {...(name === "value" ? { "data-search": true } : {})} value={q(name)} placeholder={placeholder} spellcheck={false} onInput={(event) => refine({ [name]: event.currentTarget.value })} /></Field>
  );
  const filtered = FILTERS.some((name) => q(name));
  const copyTo = (each: Found) => confirm({ title: "Publish this message again", text: "It gets a new place at the end of the topic; every group gets it.", action: "Publish", danger: false, done: "Published", work: () => publish(namespace, topic, again(each.message)) });
  return (
    <Panel title="Messages" note={state.busy ? "looking…" : `${compact(state.scanned)} looked at, ${bytes(state.bytes)}`} actions={<>
      <Segments label="Order" value={backward ? "newest" : "oldest"} options={[["newest", "Newest first"], ["oldest", "Oldest first"]]} onPick={(picked) => refine({ order: picked === "newest" ? null : picked, at: null })} />
      <button type="button" class="small" onClick={() => setTurn(turn + 1)}>Reload</button>
      <button type="button" class="small" disabled={!found.length} onClick={() => download(`${topic}.jsonl`, found.map((each) => JSON.stringify({ partition: each.partition, ...each.message })).join("\n") + "\n")}>Download {found.length}</button></>}
      foot={<>{next !== null ? <button type="button" class="small" disabled={state.busy} onClick={() => load(next, found)}>{state.busy ? "Looking…" : "Look further"}</button> : <span>That is all.</span>}<span>{compact(found.length)} found</span>{filtered && <button type="button" class="plain small" onClick={() => refine(Object.fromEntries(FILTERS.map((name) => [name, null])))}>Clear filters</button>}</>}>
      <div class="filters">
        {field("value", "Value has", undefined, "text")}
        {field("key", "Key has", undefined, "text")}
        {field("header", "Header", undefined, "name=text")}
        {field("pointer", "JSON pointer", undefined, "/customer/id")}
        {q("pointer") && field("equals", "equals")}
        <Field label="Priority"><select value={q("priority")} onChange={(event) => refine({ priority: event.currentTarget.value })}><option value="">any</option>{["critical", "high", "normal", "low", "background"].map((each) => <option key={each}>{each}</option>)}</select></Field>
        {stats.partitions.length > 1 && <Field label="Partition"><select value={q("partition")} onChange={(event) => refine({ partition: event.currentTarget.value })}><option value="">all</option>{stats.partitions.map((each) => <option key={each.partition}>{each.partition}</option>)}</select></Field>}
        {field("at", backward ? "Before" : "From", undefined, "offset, time")}
        {field("until", backward ? "Back to" : "Until", "time")}
      </div>
      {state.problem && <div class="body"><Failed problem={state.problem} /></div>}
      {found.length === 0 && !state.busy && !state.problem ? <Empty title={next === null ? (filtered ? "No message fits" : "There are no messages") : "Nothing so far"}>{next !== null && "So much and no more is read at once: look further."}</Empty> : (
        <div class="table-wrap"><table class="messages">
          <Head2 columns={[{ id: "w", label: "Time" }, { id: "o", label: "Place", num: true }, { id: "k", label: "Key", small: true }, { id: "v", label: "Value" }]} />
          <tbody>{found.map((each) => {
            const id = `${each.partition}:${each.message.offset}`;
            const m = each.message;
            return <>
              <tr key={id} class={`line ${open === id ? "open" : ""}`} onClick={() => setOpen(open === id ? null : id)}>
                <td class="muted"><Time us={m.timestamp_us} /></td>
                <td class="num mono">{each.partition}:{m.offset}</td>
                <td class="hide-small mono clip" style={{ maxWidth: "160px" }}>{keyText(m)}</td>
                <td class="value"><button type="button" class="plain mono clip" style={{ width: "100%", padding: 0, minHeight: 0, color: "inherit", display: "block", textAlign: "left" }} aria-expanded={open === id}>{m.priority && m.priority !== "normal" && <><span class="badge accent">{m.priority}</span> </>}{each.decoded ?? preview(m)}</button></td>
              </tr>
              {open === id && <tr key={`${id}+`} class="open"><td colSpan={4}><MessageDetail m={m} partition={each.partition} namespace={namespace} topic={topic} found={each}>{may("publish") && <button type="button" class="small" onClick={() => copyTo(each)}>Publish again</button>}</MessageDetail></td></tr>}
            </>;
          })}</tbody>
        </table></div>
      )}
    </Panel>
  );
}
