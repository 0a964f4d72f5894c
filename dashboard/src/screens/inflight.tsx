import { may, post, withQuery } from "../api";
import { useLive } from "../live";
import { groupPath } from "../message";
import { href, q, refine } from "../route";
import type { InFlight } from "../types";
import { confirm, Empty, Failed, Head2, Loading, Panel, Time } from "../ui";
import type { Of } from "./topic";

export function InFlightOf({ namespace, topic, stats }: Of) {
  const names = stats.groups.map((each) => each.group);
  const group = names.includes(q("group")) ? q("group") : [...stats.groups].sort((a, b) => b.in_flight - a.in_flight)[0]?.group;
  const path = group ? withQuery(`${groupPath(namespace, topic, group)}/in-flight`, { limit: 100, after: q("after") }) : null;
  const { data, problem } = useLive<{ messages: InFlight[]; next: string | null }>(path, 1);
  if (!group) return <Panel><Empty title="No group reads this topic as a queue" /></Panel>;
  const nack = (each: InFlight) => confirm({ title: "Take the message back", text: `Consumer ${each.consumer || "without a name"} loses its lease; the message is delivered again, at once.`, action: "Take back", done: "It is ready again", work: async () => {
    const { refused } = await post<{ refused: { detail?: string; code: string }[] }>(`${groupPath(namespace, topic, group)}/nack`, { receipts: [each.receipt], delay: 0, error: "taken back by hand" });
    if (refused?.length) throw new Error(refused[0].detail ?? refused[0].code);
  } });
  return (
    <Panel title="In flight" note="handed out and not settled, or waiting for a retry" actions={names.length > 1 && <select aria-label="Group" value={group} onChange={(event) => refine({ group: event.currentTarget.value, after: null })}>{names.map((each) => <option key={each}>{each}</option>)}</select>}
      foot={data && (data.next !== null || q("after")) && <>{q("after") && <button type="button" class="small" onClick={() => refine({ after: null })}>First page</button>}{data.next !== null && <button type="button" class="small" onClick={() => refine({ after: data.next })}>Next page</button>}</>}>
      {problem && <div class="body"><Failed problem={problem} /></div>}
      {!data ? <Loading /> : data.messages.length === 0 ? <Empty title="Nothing is in flight">Group {group} holds no lease, and nothing waits for a retry.</Empty> : (
        <div class="table-wrap"><table>
          <Head2 columns={[{ id: "p", label: "Place" }, { id: "s", label: "State", small: true }, { id: "c", label: "Consumer" }, { id: "n", label: "Delivery", num: true, small: true }, { id: "l", label: "Handed out", small: true }, { id: "d", label: "Until" }, { id: "e", label: "Last error", small: true }, { id: "a", label: "" }]} />
          <tbody>{data.messages.map((each) => (
            <tr key={`${each.partition}:${each.offset}`}>
              <td class="mono"><a href={href(["t", namespace, topic, "messages"], { partition: each.partition, at: each.offset, order: "oldest" })}>{each.partition}:{each.offset}</a></td>
              <td class="hide-small"><span class={`badge ${each.state === "leased" ? "accent" : "warn"}`}>{each.state}</span></td>
              <td class="name clip">{each.consumer || <span class="faint">–</span>}</td>
              <td class="hide-small num">{each.delivery_count}</td>
              <td class="hide-small muted"><Time us={each.last_delivery_us} /></td>
              <td class="muted"><Time us={each.deadline_us} /></td>
              <td class="hide-small name clip faint" title={each.error}>{each.error}</td>
              <td class="actions">{each.receipt && may("consume") && <button type="button" class="small" onClick={() => nack(each)}>Take back…</button>}</td>
            </tr>
          ))}</tbody>
        </table></div>
      )}
    </Panel>
  );
}
