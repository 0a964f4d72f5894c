import { root, withQuery } from "../api";
import { namespace } from "../frame";
import { useLive } from "../live";
import { href, q, refine } from "../route";
import { Empty, Failed, Head, Head2, Loading, Panel, Time } from "../ui";

interface Run { partition: number; offset: number; count: number }
interface Outcome { id: string; state: "committed" | "finishing" | "refused"; at_us: number; producer?: string; epoch?: number; published?: { topic: string; runs?: Run[]; delayed?: Run[] }[]; settled?: { topic: string; group: string; verb: string; count: number }[]; offsets?: string[]; reasons?: Record<string, unknown>[] }

const TONE = { committed: "good", finishing: "warn", refused: "bad" };
const total = (runs: Run[] = []) => runs.reduce((sum, each) => sum + each.count, 0);
const reason = (each: Record<string, unknown>) => String(each.detail ?? each.message ?? each.error ?? JSON.stringify(each));

export function Transactions() {
  const ns = namespace() ?? "default";
  const { data, problem } = useLive<{ transactions: Outcome[]; next: number | null }>(withQuery(`${root(ns)}/transactions`, { limit: 50, before: q("before") }), 2);
  return (
    <>
      <Head title="Transactions" />
      <Failed problem={problem} />
      <Panel label="Transactions" foot={data && (data.next !== null || q("before")) && <>{q("before") && <button type="button" class="small" onClick={() => refine({ before: null })}>Newest</button>}{data.next !== null && <button type="button" class="small" onClick={() => refine({ before: data.next })}>Older</button>}</>}>
        {!data ? <Loading /> : data.transactions.length === 0 ? <Empty title={`There were no transactions in namespace ${ns}`}>Those of the last 24 hours are here, and those that were refused since the start.</Empty> : (
          <div class="table-wrap"><table>
            <Head2 columns={[{ id: "i", label: "Transaction" }, { id: "s", label: "State" }, { id: "w", label: "When", small: true }, { id: "p", label: "Published" }, { id: "d", label: "Settled" }, { id: "n", label: "Producer", small: true }]} />
            <tbody>{data.transactions.map((each) => (
              <tr key={`${each.id} ${each.at_us}`}>
                <td class="name clip mono" title={each.id}>{each.id}</td>
                <td><span class={`badge ${TONE[each.state]}`}>{each.state}</span></td>
                <td class="hide-small muted"><Time us={each.at_us} /></td>
                <td>{each.published?.map((one) => <div key={one.topic}><a class="link" href={href(["t", ns, one.topic, "messages"])}>{one.topic}</a> <span class="faint">{total(one.runs) + total(one.delayed)}</span></div>)}</td>
                <td>{each.settled?.map((one) => <div key={`${one.topic} ${one.group}`}>{one.count} {one.verb} <span class="faint">{one.group} on {one.topic}</span></div>)}{each.offsets?.map((one) => <div key={one}>offsets of {one}</div>)}{each.reasons?.map((one, at) => <div class="bad any" key={at}>{reason(one)}</div>)}</td>
                <td class="hide-small muted">{each.producer ?? "–"}</td>
              </tr>
            ))}</tbody>
          </table></div>
        )}
      </Panel>
    </>
  );
}
