import { root, withQuery } from "../api";
import { count } from "../format";
import { namespace } from "../frame";
import { useGet } from "../live";
import { q, refine } from "../route";
import type { AuditEntry } from "../types";
import { Empty, Failed, Head, Head2, Loading, Panel, Search, Segments, Time } from "../ui";

const A_PAGE = 100;
const A_SEARCH = 1000; // entries that are looked through at a time

function matches(entry: AuditEntry, words: string[]): boolean {
  const text = [entry.actor, entry.address, entry.action, entry.namespace, entry.target, entry.detail, entry.error].join(" ").toLowerCase();
  return words.every((each) => text.includes(each));
}

export function Audit() {
  const words = q("search").toLowerCase().split(/\s+/).filter(Boolean);
  const refused = q("refused") === "yes";
  const filtered = words.length > 0 || refused;
  const page = useGet<{ entries: AuditEntry[]; next?: number | null }>(withQuery(`${root(namespace())}/audit`, { before: q("before"), limit: filtered ? A_SEARCH : A_PAGE }));
  const entries = page.data?.entries.filter((each) => (!refused || each.error) && matches(each, words));
  const next = page.data?.next ?? null;
  const foot = page.data && <>
    <span>{filtered ? `${count(entries!.length)} of ${count(page.data.entries.length)} entries that were looked through` : `${count(entries!.length)} entries`}</span>
    {q("before") && <button type="button" class="small" onClick={() => refine({ before: null })}>Newest</button>}
    {next !== null && <button type="button" class="small" disabled={page.loading} onClick={() => refine({ before: next })}>{filtered ? "Look further" : "Older"}</button>}
  </>;
  return (
    <>
      <Head title="Audit log">
        <Search name="search" label="Who, what, to what" value={q("search")} reset={{ before: null }} />
        <Segments label="Which entries" value={refused ? "yes" : ""} options={[["", "All"], ["yes", "Refused"]]} onPick={(value) => refine({ refused: value, before: null })} />
      </Head>
      <Failed problem={page.problem} />
      <Panel label="Audit log" foot={foot}>
        {!entries ? !page.problem && <Loading /> : entries.length === 0 ? <Empty title={filtered ? "No entry here is like that" : "Nothing was changed yet"}>{filtered ? "There may be older ones." : "What changes things for others is told here, for 90 days."}</Empty> : (
          <div class="table-wrap"><table>
            <Head2 columns={[{ id: "t", label: "Time" }, { id: "w", label: "Who", small: true }, { id: "f", label: "From", small: true }, { id: "d", label: "Did" }, { id: "n", label: "Namespace", small: true }, { id: "o", label: "To" }, { id: "s", label: "Said", small: true }, { id: "r", label: "Refused" }]} />
            <tbody>{entries.map((each, at) => (
              <tr key={at}><td class="muted"><Time us={each.at_us} /></td><td class="hide-small any">{each.actor || <span class="faint">no key</span>}</td><td class="hide-small mono muted">{each.address}</td><td>{each.action.replaceAll("_", " ")}</td><td class="hide-small muted">{each.namespace ?? "–"}</td><td class="name clip" title={each.target}>{each.target}</td><td class="hide-small name clip mono muted" title={each.detail}>{each.detail}</td><td>{each.error && <span class="badge bad">{each.error}</span>}</td></tr>
            ))}</tbody>
          </table></div>
        )}
      </Panel>
    </>
  );
}
