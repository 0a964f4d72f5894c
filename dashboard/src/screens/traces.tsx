import { useState } from "preact/hooks";
import { root, withQuery } from "../api";
import { duration } from "../format";
import { namespace } from "../frame";
import { useGet } from "../live";
import { href, q, refine } from "../route";
import { download, Empty, Failed, Field, Head, Loading, Panel, Time } from "../ui";

interface TraceEvent { at_us: number; event: string; topic: string; partition: number; offset: number; id?: string; group?: string; consumer?: string; delivery_count?: number; lease?: string; until_us?: number; error?: string }
interface Trace { trace_id: string | null; id: string | null; topic: string; partition: number; offset: number | null; events: TraceEvent[] }

const FIELDS = ["id", "trace", "topic", "key", "since"];
const TONES: Record<string, string> = { acked: "good", published: "accent", delivered: "accent", nacked: "warn", lease_expired: "warn", rejected: "bad", dead_lettered: "bad", expired: "bad", purged: "bad" };

export function Traces() {
  const ns = namespace() ?? "default";
  const asked = FIELDS.some((name) => name !== "since" && q(name));
  const since = q("since") ? new Date(q("since")) : null;
  const path = asked ? withQuery(`${root(ns)}/traces`, { message_id: q("id"), trace_id: q("trace"), topic: q("topic"), key: q("key"), since: since && !Number.isNaN(since.getTime()) ? since.toISOString() : null, after: q("after"), limit: 20 }) : null;
  const found = useGet<{ traces: Trace[]; next: string | null; dropped: number }>(path);
  const field = (name: string, label: string, hint?: string) => <Field label={label} hint={hint}><input data-search={name === "id" ? true : undefined} spellcheck={false} value={q(name)} onChange={(event) => refine({ [name]: event.currentTarget.value.trim(), after: null })} /></Field>;
  return (
    <div class="stack">
      <Head title="Traces" />
      <Panel label="Which messages">
        <div class="filters" style={{ borderBottom: 0 }}>{field("id", "Message id")}{field("trace", "Trace id")}{field("topic", "Topic")}{q("topic") && field("key", "Key")}{q("topic") && field("since", "Since", "time")}</div>
      </Panel>
      {!asked ? <Panel><Empty title="The life of a message, from publish to ack">Give the id of a message, a trace id from its traceparent, or a topic. Topics are traced as their setting says.</Empty></Panel> : found.problem ? <Failed problem={found.problem} /> : found.loading && !found.data ? <Loading /> : !found.data?.traces.length ? <Panel><Empty title="Nothing was traced">Either nothing happened, or the messages of this topic are not traced.</Empty></Panel> : <>
        {found.data.traces.map((trace) => <Life key={`${trace.topic}:${trace.partition}:${trace.offset}:${trace.id}`} ns={ns} trace={trace} />)}
        <div class="row">{q("after") && <button type="button" class="small" onClick={() => refine({ after: null })}>First page</button>}{found.data.next && <button type="button" class="small" onClick={() => refine({ after: found.data!.next })}>Next page</button>}<button type="button" class="small" onClick={() => download("traces.jsonl", found.data!.traces.map((each) => JSON.stringify(each)).join("\n") + "\n")}>Download</button></div>
      </>}
    </div>
  );
}

function Life({ ns, trace }: { ns: string; trace: Trace }) {
  const [all, setAll] = useState(false);
  const events = all ? trace.events : trace.events.slice(0, 50);
  const topic = trace.topic.split("/").pop()!;
  const first = trace.events[0]?.at_us ?? 0;
  const whole = Math.max((trace.events[trace.events.length - 1]?.at_us ?? 0) - first, 1);
  return (
    <Panel title={<span class="mono">{trace.id ?? `${trace.topic} ${trace.partition}:${trace.offset}`}</span>} note={<>{duration(whole)}{trace.trace_id && <> · trace <a class="mono link" href={href(["traces"], { ns: q("ns"), trace: trace.trace_id })}>{trace.trace_id}</a></>}</>}
      actions={<a class="button small" href={href(["t", ns, topic, "messages"], { partition: trace.partition, at: trace.offset, order: "oldest" })}>Open message</a>}
      foot={!all && trace.events.length > 50 && <button type="button" class="small" onClick={() => setAll(true)}>Show all {trace.events.length} events</button>}>
      <ol class="timeline" aria-label="Events">
        {events.map((each, at) => (
          <li key={at}>
            <span class="num faint">+{duration(each.at_us - first)}</span>
            <span class="track" aria-hidden="true"><i style={{ left: `${((each.at_us - first) / whole) * 100}%` }} class={TONES[each.event] ?? ""} /></span>
            <span>{each.event === "dead_lettered" ? <a class="badge bad" href={href(["t", ns, topic, "dead"], { letter: `${each.partition}-${each.offset}` })} title="Open the dead letter">dead lettered</a> : <span class={`badge ${TONES[each.event] ?? ""}`}>{each.event.replace("_", " ")}</span>}</span>
            <span class="any muted">{[each.group, each.consumer && `by ${each.consumer}`, each.delivery_count ? `delivery ${each.delivery_count}` : ""].filter(Boolean).join(" · ")}{each.until_us !== undefined && <> · until <Time us={each.until_us} /></>}{each.error && <span class="bad"> {each.error.split("\n")[0]}</span>}</span>
            <span class="hide-small faint"><Time us={each.at_us} /></span>
          </li>
        ))}
      </ol>
    </Panel>
  );
}
