import { useState } from "preact/hooks";
import { ask, enc, get, may, post, root, topicPath, withQuery } from "../api";
import { compact, count, duration, rate } from "../format";
import { namespace } from "../frame";
import { useGet, useLive } from "../live";
import { groupPath } from "../message";
import { go, href, q, refine } from "../route";
import type { GroupStats, Latency, StreamGroup, TopicStats, TopicTable } from "../types";
import { closeDialog, confirm, Dialog, dialog, doing, Empty, Failed, Field, Head, Head2, Loading, Num, Pager, Panel, Search, Time } from "../ui";
import { shownName, topicHref } from "./overview";
import type { Of } from "./topic";

const PAGE = 50;

/** Where a group is to go on: a word, an offset, a time. */
export function moveGroup(title: string, partitions: number[], work: (to: string | number, partition: number | null) => Promise<unknown>): void {
  dialog.value = () => {
    const [to, setTo] = useState("earliest");
    const [exact, setExact] = useState("");
    const [partition, setPartition] = useState("");
    const place = () => (to === "offset" ? Number(exact) : to === "time" ? new Date(exact).toISOString() : to);
    return (
      <Dialog title={title} onSubmit={() => doing(() => work(place(), partition === "" ? null : Number(partition)), "The group goes on from there")}
        footer={<><button type="button" onClick={closeDialog}>Cancel</button><button type="submit" class="danger primary" disabled={(to === "offset" || to === "time") && !exact}>Move</button></>}>
        <p class="muted">Messages before the position are not delivered; those after it are, also if they were done before. Receipts that are out become void.</p>
        <div class="fields">
          <Field label="Go on from"><select value={to} onChange={(event) => setTo(event.currentTarget.value)}><option value="earliest">the oldest message</option><option value="latest">the end</option><option value="offset">an offset</option><option value="time">a time</option></select></Field>
          {partitions.length > 1 && <Field label="On"><select value={partition} onChange={(event) => setPartition(event.currentTarget.value)}><option value="">all partitions</option>{partitions.map((each) => <option key={each} value={each}>partition {each}</option>)}</select></Field>}
          {to === "offset" && <Field label="Offset"><input type="number" min="0" value={exact} onInput={(event) => setExact(event.currentTarget.value)} /></Field>}
          {to === "time" && <Field label="Time"><input type="datetime-local" step="1" value={exact} onInput={(event) => setExact(event.currentTarget.value)} /></Field>}
        </div>
      </Dialog>
    );
  };
}

export function Groups() {
  const ns = namespace();
  const offset = Number(q("offset")) || 0;
  const path = withQuery(`${root(ns)}/stats/topics`, { search: q("search"), sort: "depth", descending: true, offset, limit: PAGE, details: true, dead_letter_topics: false });
  const { data, problem } = useLive<TopicTable>(path, 2);
  const rows = (data?.topics ?? []).flatMap((row, at) => (data?.details?.[at]?.groups ?? []).map((group) => ({ row, group })));
  return (
    <div class="stack">
      <Head title="Groups and lag"><Search name="search" label="Search topics" value={q("search")} reset={{ offset: null }} /></Head>
      <Failed problem={problem} />
      <Panel title="Queue groups" note="by topic, the longest backlog first" foot={data && <Pager offset={offset} limit={PAGE} total={data.total} what="topics" onMove={(to) => refine({ offset: to || null })} />}>
        {!data ? <Loading /> : rows.length === 0 ? <Empty title="No queue group reads these topics">A group is there from its first receive on.</Empty> : (
          <div class="table-wrap"><table>
            <Head2 columns={[{ id: "g", label: "Group" }, { id: "t", label: "Topic" }, { id: "d", label: "Lag", num: true }, { id: "f", label: "In flight", num: true, small: true }, { id: "r", label: "Retrying", num: true, small: true }, { id: "o", label: "Oldest", num: true }, { id: "a", label: "Acked/s", num: true, small: true }, { id: "w", label: "Waited p95", num: true, small: true }]} />
            <tbody>{rows.map(({ row, group }) => (
              <tr key={`${shownName(row)} ${group.group}`}><td class="name clip"><a href={topicHref(row, "groups")}>{group.group}</a></td><td class="name clip muted"><a href={topicHref(row)}>{shownName(row)}</a></td><Num n={group.depth} /><td class={`hide-small num ${group.in_flight ? "" : "zero"}`}>{count(group.in_flight)}</td><td class={`hide-small num ${group.retrying ? "" : "zero"}`}>{group.retrying}</td><td class="num">{group.oldest_age_us === null ? "–" : duration(group.oldest_age_us)}</td><td class="hide-small num">{rate(group.ack_rate)}</td><td class="hide-small num">{group.waited ? duration(group.waited.p95_us) : "–"}</td></tr>
            ))}</tbody>
          </table></div>
        )}
      </Panel>
      <StreamGroups ns={ns} />
    </div>
  );
}

const STREAMS_SHOWN = 100;

function StreamGroups({ ns }: { ns: string | null }) {
  const spaces = useGet<{ namespaces: string[] }>(ns === null ? "v1/namespaces" : null).data?.namespaces;
  const [found, setFound] = useState<{ for: string; rows: [string, StreamGroup][] } | null>(null);
  const wanted = ns === null ? spaces : [ns];
  const about = wanted?.join(" ");
  if (about !== undefined && found?.for !== about) {
    setFound({ for: about, rows: found?.rows ?? [] });
    void (async () => {
      const rows: [string, StreamGroup][] = [];
      for (const space of wanted!) {
        const names = (await get<{ groups: string[] }>(`${root(space)}/stream-groups`)).groups;
        for (const name of names.slice(0, STREAMS_SHOWN - rows.length)) rows.push([space, await get<StreamGroup>(`${root(space)}/stream-groups/${enc(name)}`)]);
      }
      setFound({ for: about, rows });
    })().catch(() => undefined);
  }
  return (
    <Panel title="Stream groups">
      {!found?.rows.length ? <Empty title="No group reads as a stream" /> : (
        <div class="table-wrap"><table>
          <Head2 columns={[{ id: "g", label: "Group" }, { id: "p", label: "State" }, { id: "m", label: "Members", num: true }, { id: "t", label: "Topics" }, { id: "l", label: "Lag", num: true }]} />
          <tbody>{found.rows.map(([space, each]) => (
            <tr key={`${space}/${each.group}`}><td class="name clip"><a href={href(["group", space, each.group])}>{space === "default" ? "" : `${space}/`}{each.group}</a></td><td><Phase phase={each.phase} /></td><Num n={each.members.length} /><td class="name clip muted">{[...new Set(each.lag.map((lag) => lag.topic))].join(", ")}</td><Num n={each.lag.reduce((sum, lag) => sum + lag.lag, 0)} /></tr>
          ))}</tbody>
        </table></div>
      )}
    </Panel>
  );
}

const Phase = ({ phase }: { phase: string }) => <span class={`badge ${phase === "stable" ? "good" : phase === "empty" ? "" : "warn"}`}>{phase}</span>;

export function StreamGroupScreen({ namespace: ns, group }: { namespace: string; group: string }) {
  const path = `${root(ns)}/stream-groups/${enc(group)}`;
  const { data, problem } = useLive<StreamGroup>(path, 1);
  if (!data) return <><Head title={group} crumbs={[["Groups", href(["groups"])]]} />{problem ? <Failed problem={problem} /> : <Loading />}</>;
  const committed = new Map(data.committed.map((each) => [`${each.topic} ${each.partition}`, each.offset]));
  const owner = new Map(data.members.flatMap((member) => member.partitions.map((each) => [`${each.topic} ${each.partition}`, member.member_id])));
  const topics = [...new Set(data.lag.map((each) => each.topic))];
  const remove = () => confirm({ title: `Delete stream group ${group}`, text: "What it has committed is forgotten.", action: "Delete", type: group, done: "The group is deleted", work: async () => {
    await ask("DELETE", path);
    go(["groups"]);
  } });
  const reset = (topic: string) => moveGroup(`Move ${group} on ${topic}`, data.lag.filter((each) => each.topic === topic).map((each) => each.partition), (to, partition) => post(`${path}/reset`, { topic: topic.split("/").pop(), to, partition }));
  return (
    <div class="stack">
      <Head title={<>{group} <Phase phase={data.phase} /></>} crumbs={[["Groups", href(["groups"])]]}>
        {may("manage") && <>{topics.map((topic) => <button type="button" key={topic} disabled={data.members.length > 0} title={data.members.length ? "Only while it has no members" : ""} onClick={() => reset(topic)}>Reset {topic}…</button>)}<button type="button" class="danger" disabled={data.members.length > 0} title={data.members.length ? "Only while it has no members" : ""} onClick={remove}>Delete…</button></>}
      </Head>
      <Panel title="Members" note={`generation ${data.generation}`}>
        {data.members.length === 0 ? <Empty title="It has no members at present" /> : <div class="table-wrap"><table>
          <Head2 columns={[{ id: "m", label: "Member" }, { id: "p", label: "Partitions" }, { id: "h", label: "Heard of" }]} />
          <tbody>{data.members.map((each) => <tr key={each.member_id}><td class="mono clip">{each.member_id}</td><td class="muted">{each.partitions.map((one) => `${one.topic}:${one.partition}`).join(", ") || "none"}</td><td><Time us={each.last_heartbeat_us} /></td></tr>)}</tbody>
        </table></div>}
      </Panel>
      <Panel title="Lag">
        {data.lag.length === 0 ? <Empty title="It has read nothing yet" /> : <div class="table-wrap"><table>
          <Head2 columns={[{ id: "t", label: "Partition" }, { id: "c", label: "Committed", num: true }, { id: "l", label: "Lag", num: true }, { id: "b", label: "", small: true }, { id: "m", label: "Member", small: true }]} />
          <tbody>{data.lag.map((each) => {
            const id = `${each.topic} ${each.partition}`;
            const most = Math.max(...data.lag.map((one) => one.lag), 1);
            return <tr key={id}><td>{each.topic}:{each.partition}</td><td class="num mono">{committed.has(id) ? count(committed.get(id)!) : "–"}</td><Num n={each.lag} /><td class="hide-small"><div class="bar" aria-hidden="true"><i style={{ width: `${(each.lag / most) * 100}%` }} /></div></td><td class="hide-small mono clip faint">{owner.get(id) ?? "nobody"}</td></tr>;
          })}</tbody>
        </table></div>}
      </Panel>
    </div>
  );
}

export function GroupsOf({ namespace: ns, topic, stats }: Of) {
  if (stats.groups.length === 0) return <Panel><Empty title="No group reads this topic as a queue">A group is there from its first receive on; its messages wait for it from the oldest one on.</Empty></Panel>;
  return <div class="stack">{stats.groups.map((group) => <GroupPanel key={group.group} ns={ns} topic={topic} stats={stats} group={group} />)}</div>;
}

function GroupPanel({ ns, topic, stats, group }: { ns: string; topic: string; stats: TopicStats; group: GroupStats }) {
  const path = groupPath(ns, topic, group.group);
  const most = Math.max(...Object.values(group.depth_by_partition), 1);
  const seek = (partitions: number[]) => moveGroup(`Move ${group.group}`, partitions, (to, partition) => post(`${path}/seek`, { to, partition }));
  const skip = () => confirm({ title: `Skip all for ${group.group}`, text: `${count(group.depth)} messages count as done for this group; other groups still get them.`, action: "Skip", type: group.group, done: "Skipped", work: () => ask("DELETE", withQuery(`${topicPath(ns, topic)}/messages`, { group: group.group })) });
  const remove = () => confirm({ title: `Delete group ${group.group}`, text: "What it has done is forgotten: the next receive of that name begins with the oldest message.", action: "Delete", type: group.group, done: "The group is deleted", work: () => ask("DELETE", path) });
  const latency = (name: string, l: Latency | null) => <><dt>{name}</dt><dd>{l ? `${duration(l.p50_us)} · ${duration(l.p95_us)} · ${duration(l.p99_us)}` : <span class="faint">nothing in five minutes</span>}</dd></>;
  return (
    <Panel title={group.group} note={group.oldest_age_us === null ? "all is done" : `the oldest for ${duration(group.oldest_age_us)}`} actions={<>
      {may("consume") && <button type="button" class="small" onClick={() => seek(stats.partitions.map((each) => each.partition))}>Move…</button>}
      {may("manage") && <><button type="button" class="small" onClick={skip}>Skip all…</button><button type="button" class="small danger" onClick={remove}>Delete…</button></>}</>}>
      <div class="body cols">
        <dl class="kv">
          <dt>Lag</dt><dd>{count(group.depth)}</dd>
          <dt>Ready</dt><dd>{count(group.ready)}</dd>
          <dt>In flight</dt><dd><a class="link" href={href(["t", ns, topic, "in-flight"], { group: group.group })}>{count(group.in_flight)}</a></dd>
          <dt>Retrying</dt><dd>{count(group.retrying)}</dd>
          <dt>Delivered, acked</dt><dd>{rate(group.deliver_rate)}/s · {rate(group.ack_rate)}/s</dd>
          {latency("Waited p50, 95, 99", group.waited)}
          {latency("Worked on", group.handled)}
          <dt>Ready by priority</dt><dd>{Object.entries(group.ready_by_priority).filter(([, n]) => n).map(([name, n]) => `${name} ${compact(n)}`).join(" · ") || <span class="faint">none</span>}</dd>
        </dl>
        <div class="table-wrap"><table>
          <Head2 columns={[{ id: "p", label: "Partition" }, { id: "c", label: "Committed", num: true }, { id: "l", label: "Lag", num: true }, { id: "b", label: "", small: true }]} />
          <tbody>{Object.entries(group.depth_by_partition).slice(0, 200).map(([partition, lag]) => (
            <tr key={partition}><td>{partition}</td><td class="num mono">{count(group.committed[partition])}</td><Num n={lag} /><td class="hide-small"><div class="bar" aria-hidden="true"><i style={{ width: `${(lag / most) * 100}%` }} /></div></td></tr>
          ))}</tbody>
        </table></div>
      </div>
    </Panel>
  );
}
