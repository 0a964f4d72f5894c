import { root, withQuery } from "../api";
import { namespace } from "../frame";
import { useLive } from "../live";
import { q, refine } from "../route";
import type { TopicTable } from "../types";
import { Empty, Failed, Head, Head2, Loading, Num, Pager, Panel, Search } from "../ui";
import { shownName, topicHref } from "./overview";

const PAGE = 50;

export function DeadLetters() {
  const ns = namespace();
  const offset = Number(q("offset")) || 0;
  const { data, problem } = useLive<TopicTable>(withQuery(`${root(ns)}/stats/topics`, { search: q("search"), sort: "dead", descending: true, offset, limit: PAGE, dead_letter_topics: false }), 2);
  const rows = (data?.topics ?? []).filter((row) => row.dead > 0);
  return (
    <>
      <Head title="Dead letters"><Search name="search" label="Search topics" value={q("search")} reset={{ offset: null }} /></Head>
      <Failed problem={problem} />
      <Panel label="Topics with dead letters" foot={rows.length === PAGE || offset ? <Pager offset={offset} limit={PAGE} total={data?.total ?? 0} onMove={(to) => refine({ offset: to || null })} /> : undefined}>
        {!data ? <Loading /> : rows.length === 0 ? <Empty title="There are no dead letters">Messages come here that were rejected, failed too often, or expired.</Empty> : (
          <div class="table-wrap"><table>
            <Head2 columns={[{ id: "t", label: "Topic" }, { id: "d", label: "Dead letters", num: true }, { id: "w", label: "Waiting", num: true }, { id: "g", label: "Groups", num: true, small: true }]} />
            <tbody>{rows.map((row) => <tr key={shownName(row)}><td class="name clip"><a href={topicHref(row, "dead")}>{shownName(row)}</a></td><td class="num bad">{row.dead.toLocaleString("en")}</td><Num n={row.depth} /><td class="num hide-small">{row.groups}</td></tr>)}</tbody>
          </table></div>
        )}
      </Panel>
    </>
  );
}
