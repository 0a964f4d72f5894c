import { useState } from "preact/hooks";
import { ask, may, topicPath } from "../api";
import { bytes, compact, count, duration, rate } from "../format";
import { useGet, useLive } from "../live";
import { href, q } from "../route";
import type { Lane, LatencyRow, TopicDescription, TopicStats } from "../types";
import { Card, doing, Empty, Failed, Head, Head2, Loading, Num, Panel, Segments, Time } from "../ui";
import { DelayedOf } from "./delayed";
import { LettersOf } from "./letters";
import { GroupsOf } from "./groups";
import { InFlightOf } from "./inflight";
import { Messages } from "./messages";
import { History } from "./overview";
import { PublishForm } from "./publish";
import { deleteTopic, purgeTopic } from "./topics";
import { Chart } from "../chart";

export function TopicScreen({ namespace, topic, tab, rest }: { namespace: string; topic: string; tab: string; rest: string[] }) {
  const path = topicPath(namespace, topic);
  const { data, problem } = useLive<TopicStats>(`${path}/stats`, 1);
  const tabs: [string, string, number | undefined, string][] = [
    ["", "Overview", undefined, "describe"],
    ["messages", "Messages", data?.messages, "look"],
    ["groups", "Groups", data?.groups.length, "describe"],
    ["in-flight", "In flight", data?.in_flight, "look"],
    ["dead", "Dead letters", data?.dead, "look"],
    ["delayed", "Delayed", data?.delayed, "look"],
    ["publish", "Publish", undefined, "publish"],
    ["settings", "Settings", undefined, "describe"],
  ];
  const head = (
    <>
      <Head title={topic} crumbs={[["Topics", href(["topics"])], ...(namespace === "default" ? [] : [[namespace, href(["topics"], { ns: namespace })] as [string, string]])]} />
      <nav class="tabs" aria-label="Of this topic">{tabs.map(([id, label, n, right]) => may(right) && (
        <a key={id} href={href(id ? ["t", namespace, topic, id] : ["t", namespace, topic])} aria-current={id === tab ? "page" : undefined} ref={(element) => { if (id === tab) element?.scrollIntoView({ block: "nearest", inline: "nearest" }); }}>{label}{n !== undefined && n > 0 && <span class={`count ${id === "dead" ? "bad" : ""}`}>{compact(n)}</span>}</a>
      ))}</nav>
    </>
  );
  if (problem && !data) return <>{head}<Failed problem={problem} /></>;
  if (!data) return <>{head}<Loading /></>;
  const of = { namespace, topic, stats: data };
  return (
    <>
      {head}
      {tab === "" && <Overview {...of} />}
      {tab === "messages" && <Messages {...of} />}
      {tab === "groups" && <GroupsOf {...of} />}
      {tab === "in-flight" && <InFlightOf {...of} />}
      {tab === "dead" && <LettersOf {...of} group={rest[0]} />}
      {tab === "delayed" && <DelayedOf {...of} />}
      {tab === "publish" && <PublishForm {...of} from={q("from")} />}
      {tab === "settings" && <Settings {...of} />}
    </>
  );
}

export interface Of { namespace: string; topic: string; stats: TopicStats }

function Overview({ namespace, topic, stats }: Of) {
  const path = topicPath(namespace, topic);
  const lanes = useLive<{ lanes: Record<string, Lane> }>(`${path}/priority/stats`, 2).data?.lanes;
  const newest = useGet<TopicDescription>(path).data;
  const most = Math.max(...stats.partitions.map((each) => each.end - each.start), 1);
  return (
    <div class="stack">
      {stats.alarms.map((each) => <div class="note-box warn" key={each.kind + each.group}>{each.kind === "lag" ? `${each.mode} group ${each.group} has not done a message of partition ${each.partition} that is ${duration(each.age_us)} old` : `No group has read a message of partition ${each.partition} that is ${duration(each.age_us)} old, and retention drops it soon`}</div>)}
      <div class="cards">
        <Card label="Published" value={rate(stats.publish_rate)} unit="/s" note={`${compact(stats.counters.published)} since the start`} />
        <Card label="Delivered" value={rate(stats.deliver_rate)} unit="/s" note={`${rate(stats.ack_rate)}/s acked`} />
        <Card label="Waiting" value={compact(stats.depth)} note={`${stats.groups.length} group${stats.groups.length === 1 ? "" : "s"}`} to={href(["t", namespace, topic, "groups"])} />
        <Card label="In flight" value={compact(stats.in_flight)} note="under a lease" to={href(["t", namespace, topic, "in-flight"])} />
        <Card label="Delayed" value={compact(stats.delayed)} note={stats.next_due_us ? <>next <Time us={stats.next_due_us} /></> : "none"} to={href(["t", namespace, topic, "delayed"])} />
        <Card label="Dead letters" value={compact(stats.dead)} tone={stats.dead ? "bad" : undefined} note={stats.dead ? "to look at" : "none"} to={href(["t", namespace, topic, "dead"])} />
        <Card label="Stored" value={bytes(stats.size_bytes)} note={`${compact(stats.messages)} messages`} to={href(["t", namespace, topic, "messages"])} />
      </div>
      <History path={`${path}/history`} groups={stats.groups.length > 0} />
      <Latencies path={path} groups={stats.groups.map((each) => each.group)} />
      <div class="cols">
        <Panel title="Partitions" note={`${stats.partitions.length}`}>
          <div class="table-wrap"><table>
            <Head2 columns={[{ id: "p", label: "Partition" }, { id: "b", label: "", small: true }, { id: "o", label: "Offsets", num: true }, { id: "r", label: "In/s", num: true }, { id: "s", label: "Size", num: true }]} />
            <tbody>{stats.partitions.slice(0, 200).map((each) => (
              <tr key={each.partition}><td><a href={href(["t", namespace, topic, "messages"], { partition: each.partition })}>{each.partition}</a>{each.damaged > 0 && <span class="badge bad"> {each.damaged} damaged</span>}</td><td class="hide-small"><div class="bar" aria-hidden="true"><i style={{ width: `${((each.end - each.start) / most) * 100}%` }} /></div></td><td class="num">{count(each.start)}–{count(each.end)}</td><td class="num">{rate(each.publish_rate)}</td><td class="num muted">{bytes(each.size_bytes)}</td></tr>
            ))}</tbody>
          </table></div>
        </Panel>
        <div class="stack">
          <Panel title="Priority lanes">
            {!lanes ? <Loading /> : (
              <div class="table-wrap"><table>
                <Head2 columns={[{ id: "l", label: "Lane" }, { id: "r", label: "Ready", num: true }, { id: "f", label: "In flight", num: true }, { id: "i", label: "In/s", num: true }, { id: "o", label: "Out/s", num: true }]} />
                <tbody>{Object.entries(lanes).map(([name, lane]) => <tr key={name}><td>{name}</td><Num n={lane.ready} /><Num n={lane.in_flight} /><td class="num">{rate(lane.enqueue_rate)}</td><td class="num">{rate(lane.dequeue_rate)}</td></tr>)}</tbody>
              </table></div>
            )}
          </Panel>
          <Panel title="Since the server began">
            <div class="body"><dl class="kv">
              {Object.entries(stats.counters).map(([name, n]) => <><dt>{name.replace("_", " ")}</dt><dd class="mono">{count(n)}</dd></>)}
              <dt>made</dt><dd><Time us={newest?.created_us} /></dd>
            </dl></div>
          </Panel>
        </div>
      </div>
    </div>
  );
}

function Latencies({ path, groups }: { path: string; groups: string[] }) {
  const rows = useGet<{ rows: LatencyRow[] }>(`${path}/latencies?limit=20000`).data?.rows ?? [];
  const [group, setGroup] = useState("");
  const [kind, setKind] = useState<"waited" | "handled">("waited");
  if (groups.length === 0) return null;
  const picked = groups.includes(group) ? group : groups[0];
  const own = rows.filter((row) => row.group === picked && row.kind === kind && row.priority === null);
  const last = own[own.length - 1];
  const line = (name: "p50_us" | "p95_us" | "p99_us") => own.map((row) => row[name]);
  return (
    <Panel title="Latency" note={last ? `${compact(own.reduce((sum, row) => sum + row.count, 0))} in the last hour` : undefined} actions={<>
      {groups.length > 1 && <select aria-label="Group" value={picked} onChange={(event) => setGroup(event.currentTarget.value)}>{groups.map((each) => <option key={each}>{each}</option>)}</select>}
      <Segments label="Kind" value={kind} options={[["waited", "waited"], ["handled", "worked on"]]} onPick={setKind} /></>}>
      {own.length === 0 ? <Empty title={kind === "waited" ? "Nothing was handed out in the last hour" : "Nothing was acked in the last hour"} /> : (
        <div class="body"><Chart label={`How long messages ${kind === "waited" ? "waited for their first delivery" : "were worked on until the ack"}`} times={own.map((row) => row.minute_us / 1e6)} format={duration} series={[{ label: "p50", color: 1, values: line("p50_us"), fill: true }, { label: "p95", color: 3, values: line("p95_us") }, { label: "p99", color: 2, values: line("p99_us") }]} /></div>
      )}
    </Panel>
  );
}

// Written as people write them: durations are stored in milliseconds.
const given = (name: string, value: unknown): [string, string] => (name.endsWith("_ms") ? [name.slice(0, -3), value === null ? "null" : span(value as number)] : [name, Array.isArray(value) && name === "backoff" ? JSON.stringify([span(value[0]), value[1], span(value[2])]) : typeof value === "string" ? value : JSON.stringify(value)]);

function span(ms: number): string {
  for (const [unit, size] of [["d", 86_400_000], ["h", 3_600_000], ["m", 60_000], ["s", 1000]] as [string, number][]) if (ms >= size && ms % size === 0) return `${ms / size}${unit}`;
  return `${ms}ms`;
}

function Settings({ namespace, topic, stats }: Of) {
  const path = topicPath(namespace, topic);
  const described = useGet<TopicDescription>(path);
  const [changed, setChanged] = useState<Record<string, string>>({});
  if (!described.data) return <Loading />;
  const rows = Object.entries(described.data.settings).map(([name, value]) => given(name, value));
  const manage = may("manage");
  const save = async (event: Event) => {
    event.preventDefault();
    const body = Object.fromEntries(Object.entries(changed).map(([name, text]) => [name, parsed(text)]));
    if (await doing(() => ask("PATCH", path, body), "The settings are changed")) {
      setChanged({});
      described.reload();
    }
  };
  return (
    <div class="stack">
      <Panel title="Settings" note={described.data.updated_us ? <>changed <Time us={described.data.updated_us} /></> : undefined}>
        <form onSubmit={save}>
          <div class="body fields" style={{ gridTemplateColumns: "repeat(auto-fill, minmax(150px, 1fr))" }}>
            {rows.map(([name, value]) => (
              <label class="field" key={name}><span>{name.replaceAll("_", " ")}</span><input class="mono" readOnly={!manage} spellcheck={false} value={changed[name] ?? value} onInput={(event) => {
                const typed = event.currentTarget.value;
                const { [name]: _, ...others } = changed;
                setChanged(typed === value ? others : { ...others, [name]: typed });
              }} /></label>
            ))}
          </div>
          {manage && <div class="foot"><button type="submit" class="primary" disabled={Object.keys(changed).length === 0}>Change {Object.keys(changed).length || ""} setting{Object.keys(changed).length === 1 ? "" : "s"}</button><span class="faint">Partitions can be added, never taken away.</span></div>}
        </form>
      </Panel>
      {manage && (
        <Panel title="Danger">
          <div class="body row">
            <button type="button" onClick={() => doing(() => ask("POST", `${path}/compact`), "The files are rewritten")}>Compact</button>
            <button type="button" class="danger" onClick={() => purgeTopic(namespace, topic, stats.messages)}>Purge…</button>
            <button type="button" class="danger" onClick={() => deleteTopic(namespace, topic)}>Delete…</button>
          </div>
        </Panel>
      )}
    </div>
  );
}

function parsed(text: string): unknown {
  try {
    return JSON.parse(text);
  } catch {
    return text;
  }
}
