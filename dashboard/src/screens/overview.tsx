import { get, root, withQuery } from "../api";
import { Chart, filled } from "../chart";
import { bytes, compact, duration, rate } from "../format";
import { namespace } from "../frame";
import { useLive } from "../live";
import { href, q, refine } from "../route";
import type { HistoryPage, Overview, TopicRow } from "../types";
import { Card, Empty, Failed, Head, Head2, Loading, Num, Panel, Segments, Time } from "../ui";
import { useEffect, useState } from "preact/hooks";

export const topicHref = (row: { namespace: string; topic: string }, ...tab: string[]) => href(["t", row.namespace, row.topic, ...tab]);
export const shownName = (row: { namespace: string; topic: string }) => (row.namespace === "default" ? row.topic : `${row.namespace}/${row.topic}`);

const SPANS: Record<string, [number, number]> = { "1h": [60, 1], "6h": [360, 2], "24h": [1440, 10], "7d": [10080, 60] };

export function History({ path, groups }: { path: string; groups?: boolean }) {
  const span = SPANS[q("span")] ? q("span") : "1h";
  const [minutes, step] = SPANS[span];
  const [page, setPage] = useState<{ data: HistoryPage; until: number } | null>(null);
  useEffect(() => {
    let gone = false;
    const load = () => {
      const until = Math.floor((Date.now() - 10_000) / 60_000) * 60_000; // the broker needs a moment to note a minute
      void get<HistoryPage>(withQuery(path, { since: new Date(until - minutes * 60_000).toISOString(), step: `${step}m` })).then((data) => gone || setPage({ data, until }), () => undefined);
    };
    load();
    const timer = setInterval(load, 30_000);
    return () => {
      gone = true;
      clearInterval(timer);
    };
  }, [path, span]);
  const picker = <Segments label="Time span" value={span} options={Object.keys(SPANS).map((each) => [each, each])} onPick={(picked) => refine({ span: picked })} />;
  if (page === null) return <Panel title="History" actions={picker}><Loading /></Panel>;
  const { times, at, last } = filled(page.data.rows, (page.until - minutes * 60_000) * 1000, page.until * 1000, step * 60e6);
  const perSecond = (value: number | undefined) => (value ?? 0) / (step * 60);
  const names = groups ? [...new Set(page.data.rows.flatMap((row) => Object.keys(row.lag)))].slice(0, 5) : [];
  return (
    <Panel title="History" note={page.data.rows.length ? undefined : "a minute is noted when it is over"} actions={picker}>
      <div class="body cols">
        <Chart label="Messages a second" times={times} format={rate} series={[
          { label: "published/s", color: 1, fill: true, values: at.map((row) => perSecond(row?.published)) },
          { label: "acked/s", color: 4, values: at.map((row) => perSecond(row?.acked)) },
          { label: "failed/s", color: 2, values: at.map((row) => perSecond(row?.failed)) },
        ]} />
        {names.length > 0
          ? <Chart label="Lag by group" times={times} series={names.map((name, n) => ({ label: name, color: (n + 1) as 1, values: last.map((row) => row?.lag[name] ?? null), fill: names.length === 1 }))} />
          : <Chart label="Messages that wait" times={times} series={[
              { label: "waiting", color: 1, fill: true, values: last.map((row) => row?.depth ?? null) },
              { label: "delayed", color: 3, values: last.map((row) => row?.delayed ?? null) },
              { label: "dead", color: 2, values: last.map((row) => row?.dead ?? null) },
            ]} />}
      </div>
    </Panel>
  );
}

export function OverviewScreen() {
  const ns = namespace();
  const { data, problem } = useLive<Overview>(`${root(ns)}/overview`, 1);
  if (problem && !data) return <Failed problem={problem} />;
  if (!data) return <><Head title="Overview" /><Loading /></>;
  const { summary: s } = data;
  const ns_ = { ns: q("ns") };
  const oldest = data.lagging.reduce((most, each) => Math.max(most, each.oldest_age_us ?? 0), 0);
  const worst = data.lagging.reduce((most, each) => (each.lag > most.lag ? each : most), { lag: 0, group: "", topic: "", namespace: "" });
  return (
    <div class="stack">
      <Head title="Overview" />
      <Alerts data={data} />
      <div class="cards five">
        <Card label="Published" value={rate(s.publish_rate)} unit="/s" note={`to ${data.busiest.length > 9 ? "10+" : data.busiest.length} topics just now`} to={href(["topics"], { ...ns_, sort: "publish_rate", desc: "1" })} />
        <Card label="Acked" value={rate(s.ack_rate)} unit="/s" note={`${rate(s.deliver_rate)}/s delivered`} to={href(["groups"], ns_)} />
        <Card label="Waiting" value={compact(s.depth)} note={oldest ? `the oldest for ${duration(oldest)}` : "nothing is left"} to={href(["topics"], { ...ns_, sort: "depth", desc: "1" })} />
        <Card label="Worst lag" value={compact(worst.lag)} note={worst.group ? `${worst.group} on ${worst.topic}` : "no group lags"} to={href(["groups"], ns_)} />
        <Card label="In flight" value={compact(s.in_flight)} note="under a lease" to={href(["topics"], { ...ns_, sort: "in_flight", desc: "1" })} />
        <Card label="Topics" value={compact(s.topics)} note={`${compact(s.partitions)} partitions, ${compact(s.groups + s.stream_groups)} groups`} to={href(["topics"], ns_)} />
        <Card label="Delayed" value={compact(s.delayed)} note={s.delayed ? "to come" : "none"} to={href(["delayed"], ns_)} />
        <Card label="Dead letters" value={compact(s.dead)} tone={s.dead ? "bad" : undefined} note={s.dead ? `in ${data.dead.length > 9 ? "10+ topics" : data.dead.length === 1 ? "1 topic" : `${data.dead.length} topics`}` : "none"} to={href(["dead"], ns_)} />
        <Card label="Webhooks failing" value={compact(data.webhooks.length)} tone={data.webhooks.length ? "bad" : undefined} note={data.webhooks.length ? "or disabled" : "all well"} to={href(["webhooks"], ns_)} />
        <Card label="Stored" value={bytes(s.size_bytes)} note={data.disk_free_bytes === null ? `${compact(s.messages)} messages` : `${bytes(data.disk_free_bytes)} free on the disk`} />
      </div>
      <History path={`${root(ns)}/history`} />
      <div class="cols">
        <Panel title="Groups that lag" actions={<a class="link" href={href(["groups"], ns_)}>All</a>}>
          {data.lagging.length === 0 ? <Empty title="Every group has done all it was given" /> : (
            <div class="table-wrap"><table>
              <Head2 columns={[{ id: "g", label: "Group" }, { id: "t", label: "Topic" }, { id: "l", label: "Lag", num: true }, { id: "o", label: "Oldest", num: true }]} />
              <tbody>{data.lagging.map((each) => (
                <tr key={`${each.namespace}/${each.topic}/${each.group}`}><td class="name clip"><a href={each.mode === "queue" ? topicHref(each, "groups") : href(["group", each.namespace, each.group])}>{each.group}</a> {each.mode === "stream" && <span class="badge">stream</span>}</td><td class="name clip muted">{shownName(each)}</td><Num n={each.lag} /><td class="num">{each.oldest_age_us === null ? "–" : duration(each.oldest_age_us)}</td></tr>
              ))}</tbody>
            </table></div>
          )}
        </Panel>
        <Panel title="Busiest topics" actions={<a class="link" href={href(["topics"], { ...ns_, sort: "publish_rate", desc: "1" })}>All</a>}>
          {data.busiest.length === 0 ? <Empty title="Nothing is going on">No topic got or gave a message in the last ten seconds.</Empty> : <Busiest rows={data.busiest} />}
        </Panel>
      </div>
    </div>
  );
}

function Busiest({ rows }: { rows: TopicRow[] }) {
  return (
    <div class="table-wrap"><table>
      <Head2 columns={[{ id: "t", label: "Topic" }, { id: "i", label: "In/s", num: true }, { id: "o", label: "Out/s", num: true }, { id: "d", label: "Waiting", num: true }]} />
      <tbody>{rows.map((row) => <tr key={shownName(row)}><td class="name clip"><a href={topicHref(row)}>{shownName(row)}</a></td><td class="num">{rate(row.publish_rate)}</td><td class="num">{rate(row.deliver_rate)}</td><Num n={row.depth} /></tr>)}</tbody>
    </table></div>
  );
}

function Alerts({ data }: { data: Overview }) {
  const found = [];
  if (data.failed_logs) found.push(<div class="note-box bad" role="alert">{data.failed_logs} log{data.failed_logs > 1 ? "s take" : " takes"} no writes any more after a failed write: look at the disk, then restart the server.</div>);
  if (data.disk_free_bytes !== null && data.disk_free_bytes < data.disk_floor_bytes) found.push(<div class="note-box bad" role="alert">The disk is nearly full ({bytes(data.disk_free_bytes)} free): nothing is published before there is room.</div>);
  for (const each of data.alarms) found.push(<div class="note-box warn" key={shownName(each)}><span><a class="link" href={topicHref(each)}>{shownName(each)}</a>: {each.kinds.includes("lag") ? "a group is behind for longer than its lag alarm" : "messages that no group has read are near the end of their retention"}</span></div>);
  for (const each of data.webhooks) found.push(<div class="note-box warn" key={each.name}><span>Webhook <a class="link" href={href(["webhook", each.namespace, each.name])}>{each.name}</a> {each.disabled ? `is disabled: ${each.disabled}` : <>fails, since <Time us={each.failing_since_us} /></>}</span></div>);
  return found.length ? <div class="stack" style={{ gap: "8px" }}>{found}</div> : null;
}
