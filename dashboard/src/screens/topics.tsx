import { useState } from "preact/hooks";
import { ask, may, root, topicPath, withQuery } from "../api";
import { bytes, rate } from "../format";
import { namespace } from "../frame";
import { useLive } from "../live";
import { go, q, refine } from "../route";
import type { TopicTable } from "../types";
import { closeDialog, type Column, confirm, Dialog, dialog, doing, Empty, Failed, Field, Head, Head2, Loading, Num, Pager, Panel, Search, Spark } from "../ui";
import { shownName, topicHref } from "./overview";

const PAGE = 50;

const COLUMNS: Column[] = [
  { id: "topic", label: "Topic", sorts: true },
  { id: "recent", label: "Last hour", small: true },
  { id: "publish_rate", label: "In/s", num: true, sorts: true },
  { id: "out", label: "Out/s", num: true, small: true },
  { id: "depth", label: "Waiting", num: true, sorts: true },
  { id: "in_flight", label: "In flight", num: true, sorts: true },
  { id: "delayed", label: "Delayed", num: true, sorts: true, small: true },
  { id: "dead", label: "Dead", num: true, sorts: true },
  { id: "messages", label: "Stored", num: true, sorts: true, small: true },
  { id: "size_bytes", label: "Size", num: true, sorts: true, small: true },
];

export function Topics() {
  const ns = namespace();
  const sort = q("sort") || "topic";
  const descending = q("desc") === "1";
  const offset = Number(q("offset")) || 0;
  const letters = q("letters") === "1";
  const path = withQuery(`${root(ns)}/stats/topics`, { search: q("search"), sort, descending, offset, limit: PAGE, recent: true, dead_letter_topics: letters });
  const { data, problem } = useLive<TopicTable>(path, 1);
  const onSort = (id: string) => refine({ sort: id, desc: id === sort ? (descending ? null : "1") : id === "topic" ? null : "1", offset: null });
  return (
    <>
      <Head title="Topics">
        <label class="check muted"><input type="checkbox" checked={letters} onChange={() => refine({ letters: letters ? null : "1", offset: null })} /> dead-letter topics</label>
        <Search name="search" label="Search topics" value={q("search")} reset={{ offset: null }} />
        {may("manage") && <button type="button" class="primary" onClick={() => create(ns ?? "default")}>New topic</button>}
      </Head>
      <Failed problem={problem} />
      <Panel label="Topics" foot={data && <Pager offset={offset} limit={PAGE} total={data.total} onMove={(to) => refine({ offset: to || null })} />}>
        {!data ? <Loading /> : data.topics.length === 0 ? (
          q("search") ? <Empty title="No topic has this in its name">The search looks at every topic, and at its namespace.</Empty> : <Empty title="There is no topic yet">Make one here, or let a program publish to one.</Empty>
        ) : (
          <div class="table-wrap"><table>
            <Head2 columns={COLUMNS} sort={sort} descending={descending} onSort={onSort} />
            <tbody>{data.topics.map((row, at) => (
              <tr key={`${row.namespace}/${row.topic}`}>
                <td class="name clip"><a href={topicHref(row)} title={shownName(row)}>{row.namespace !== "default" && ns === null && <span class="faint">{row.namespace}/</span>}{row.topic}</a></td>
                <td class="hide-small"><Spark values={data.recent?.[at] ?? [0, 0]} label={`${(data.recent?.[at] ?? []).reduce((sum, n) => sum + n, 0)} messages in the last hour`} /></td>
                <td class={row.publish_rate ? "num" : "num zero"}>{rate(row.publish_rate)}</td>
                <td class={`hide-small ${row.deliver_rate ? "num" : "num zero"}`}>{rate(row.deliver_rate)}</td>
                <Num n={row.depth} /><Num n={row.in_flight} />
                <td class={`hide-small num ${row.delayed ? "" : "zero"}`}>{row.delayed}</td>
                <td class={`num ${row.dead ? "bad" : "zero"}`}>{row.dead ? <a href={topicHref(row, "dead")}>{row.dead}</a> : 0}</td>
                <td class="hide-small num muted">{row.messages.toLocaleString("en")}</td>
                <td class="hide-small num muted">{bytes(row.size_bytes)}</td>
              </tr>
            ))}</tbody>
          </table></div>
        )}
      </Panel>
    </>
  );
}

function create(where: string): void {
  dialog.value = () => {
    const [form, setForm] = useState({ namespace: where, topic: "", partitions: "1", visibility: "30s", max_retries: "3", retention: "7d", fsync: "interval", ordered: false });
    const set = (name: string) => (event: Event) => setForm({ ...form, [name]: (event.currentTarget as HTMLInputElement).value });
    const submit = () => doing(async () => {
      const settings = { partitions: Number(form.partitions), visibility: form.visibility, max_retries: Number(form.max_retries), retention: form.retention, fsync: form.fsync, ordered_by_key: form.ordered };
      await ask("PUT", topicPath(form.namespace, form.topic), settings);
      go(["t", form.namespace, form.topic]);
    }, `Topic ${form.topic} is there`);
    return (
      <Dialog title="New topic" onSubmit={submit} footer={<><button type="button" onClick={closeDialog}>Cancel</button><button type="submit" class="primary" disabled={!form.topic}>Create</button></>}>
        <div class="fields">
          <Field label="Name"><input autofocus autocomplete="off" spellcheck={false} value={form.topic} onInput={set("topic")} /></Field>
          <Field label="Namespace"><input value={form.namespace} onInput={set("namespace")} /></Field>
          <Field label="Partitions" hint="can be added later"><input type="number" min="1" max="10000" value={form.partitions} onInput={set("partitions")} /></Field>
          <Field label="Visibility timeout"><input value={form.visibility} onInput={set("visibility")} /></Field>
          <Field label="Retries" hint="then a dead letter"><input type="number" min="0" value={form.max_retries} onInput={set("max_retries")} /></Field>
          <Field label="Retention"><input value={form.retention} onInput={set("retention")} /></Field>
          <Field label="Durable by"><select value={form.fsync} onChange={set("fsync")}><option value="interval">interval: within a second</option><option value="always">always: before the answer</option><option value="batch">batch: every thousand writes</option><option value="never">never: by the system</option></select></Field>
          <label class="check"><input type="checkbox" checked={form.ordered} onChange={() => setForm({ ...form, ordered: !form.ordered })} /> In order by key</label>
        </div>
      </Dialog>
    );
  };
}

export function deleteTopic(ns: string, topic: string): void {
  confirm({ title: `Delete topic ${topic}`, text: "All its messages, delayed messages and groups go with it. Its dead letters stay.", action: "Delete", type: topic, done: `${topic} is deleted`, work: async () => {
    await ask("DELETE", topicPath(ns, topic));
    go(["topics"]);
  } });
}

export function purgeTopic(ns: string, topic: string, messages: number): void {
  confirm({ title: `Purge topic ${topic}`, text: `${messages.toLocaleString("en")} messages and all delayed ones are dropped, for every group.`, action: "Purge", type: topic, work: () => ask("DELETE", `${topicPath(ns, topic)}/messages`), done: `${topic} is empty` });
}
