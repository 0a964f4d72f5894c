import { ask, enc, may, root, topicPath, withQuery } from "../api";
import { namespace } from "../frame";
import { useGet, useLive } from "../live";
import { keyText, preview } from "../message";
import { q, refine } from "../route";
import type { Delayed as Waiting, TopicTable } from "../types";
import { Card, doing, Empty, Failed, Head, Head2, Loading, Num, Pager, Panel, Search, Time } from "../ui";
import { shownName, topicHref } from "./overview";
import type { Of } from "./topic";

const PAGE = 50;

interface DelayStats { pending: number; next_due_us: number | null; delivered: number; cancelled: number; expired: number }

export function Delayed() {
  const ns = namespace();
  const offset = Number(q("offset")) || 0;
  const stats = useLive<DelayStats>(`${root(ns)}/delayed/stats`, 2).data;
  const { data, problem } = useLive<TopicTable>(withQuery(`${root(ns)}/stats/topics`, { search: q("search"), sort: "delayed", descending: true, offset, limit: PAGE, details: true, dead_letter_topics: false }), 2);
  const rows = (data?.topics ?? []).map((row, at) => ({ row, next: data?.details?.[at]?.next_due_us })).filter(({ row }) => row.delayed > 0);
  return (
    <div class="stack">
      <Head title="Delayed messages"><Search name="search" label="Search topics" value={q("search")} reset={{ offset: null }} /></Head>
      <Failed problem={problem} />
      {stats && <div class="cards">
        <Card label="Waiting" value={stats.pending.toLocaleString("en")} note={stats.next_due_us ? <>next <Time us={stats.next_due_us} /></> : "none"} />
        <Card label="Delivered" value={stats.delivered.toLocaleString("en")} note="since the start" />
        <Card label="Cancelled" value={stats.cancelled.toLocaleString("en")} note="since the start" />
        <Card label="Expired" value={stats.expired.toLocaleString("en")} note="when they fell due" />
      </div>}
      <Panel label="Topics with delayed messages" foot={rows.length === PAGE || offset ? <Pager offset={offset} limit={PAGE} total={data?.total ?? 0} onMove={(to) => refine({ offset: to || null })} /> : undefined}>
        {!data ? <Loading /> : rows.length === 0 ? <Empty title="No message waits for its time" /> : (
          <div class="table-wrap"><table>
            <Head2 columns={[{ id: "t", label: "Topic" }, { id: "d", label: "Delayed", num: true }, { id: "n", label: "Next due" }]} />
            <tbody>{rows.map(({ row, next }) => <tr key={shownName(row)}><td class="name clip"><a href={topicHref(row, "delayed")}>{shownName(row)}</a></td><Num n={row.delayed} /><td class="muted"><Time us={next} /></td></tr>)}</tbody>
          </table></div>
        )}
      </Panel>
    </div>
  );
}

export function DelayedOf({ namespace: ns, topic, stats }: Of) {
  const path = topicPath(ns, topic);
  const page = useGet<{ delayed: Waiting[]; next: number | null }>(withQuery(`${path}/delayed`, { limit: 100, after: q("after") || 0 }));
  const cancel = async (each: Waiting) => (await doing(() => ask("DELETE", `${path}/delayed/${enc(each.id)}`), "It is taken back")) && page.reload();
  return (
    <Panel title="Delayed" note={`${stats.delayed.toLocaleString("en")} wait`} actions={<button type="button" class="small" onClick={page.reload}>Reload</button>}
      foot={page.data && (page.data.next !== null || q("after")) && <>{q("after") && <button type="button" class="small" onClick={() => refine({ after: null })}>First page</button>}{page.data.next !== null && <button type="button" class="small" onClick={() => refine({ after: page.data!.next })}>Next page</button>}</>}>
      {page.problem ? <div class="body"><Failed problem={page.problem} /></div> : !page.data ? <Loading /> : page.data.delayed.length === 0 ? <Empty title="No message waits for its time" /> : (
        <div class="table-wrap"><table class="messages">
          <Head2 columns={[{ id: "w", label: "Due" }, { id: "k", label: "Key", small: true }, { id: "v", label: "Value" }, { id: "a", label: "" }]} />
          <tbody>{page.data.delayed.map((each) => <tr key={each.id}><td><Time us={each.deliver_at_us} /></td><td class="hide-small mono clip">{keyText(each.message)}</td><td class="value"><span class="mono">{preview(each.message)}</span></td><td class="actions">{may("publish") && <button type="button" class="small" onClick={() => cancel(each)}>Cancel</button>}</td></tr>)}</tbody>
        </table></div>
      )}
    </Panel>
  );
}
