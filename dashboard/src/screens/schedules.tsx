import { useState } from "preact/hooks";
import { ask, enc, may, post, root, withQuery } from "../api";
import { namespace } from "../frame";
import { useGet, useLive } from "../live";
import { go, href, q, refine } from "../route";
import type { Schedule } from "../types";
import { closeDialog, confirm, Dialog, dialog, doing, Empty, Failed, Field, Head, Head2, Loading, Panel, Time } from "../ui";

const when = (each: Schedule) => each.cron ?? (each.every ? `every ${each.every}` : "once");

export function Schedules() {
  const ns = namespace() ?? "default";
  const path = `${root(ns)}/schedules`;
  const { data, problem } = useLive<{ schedules: Schedule[]; next: string | null }>(withQuery(path, { limit: 100, after: q("after") }), 2);
  return (
    <>
      <Head title="Schedules">{may("publish") && <button type="button" class="primary" onClick={() => edit(ns)}>New schedule</button>}</Head>
      <Failed problem={problem} />
      <Panel label="Schedules" foot={data && (data.next !== null || q("after")) && <>{q("after") && <button type="button" class="small" onClick={() => refine({ after: null })}>First page</button>}{data.next !== null && <button type="button" class="small" onClick={() => refine({ after: data.next })}>Next page</button>}</>}>
        {!data ? <Loading /> : data.schedules.length === 0 ? <Empty title={`Namespace ${ns} has no schedules`}>A schedule publishes a message by cron, at an interval, or once.</Empty> : (
          <div class="table-wrap"><table>
            <Head2 columns={[{ id: "n", label: "Schedule" }, { id: "w", label: "When" }, { id: "t", label: "Topic", small: true }, { id: "s", label: "State" }, { id: "x", label: "Next" }, { id: "l", label: "Last", small: true }, { id: "f", label: "Fired", num: true, small: true }]} />
            <tbody>{data.schedules.map((each) => (
              <tr key={each.name}><td class="name clip"><a href={href(["schedule", ns, each.name])}>{each.name}</a></td><td class="mono">{when(each)} <span class="hide-small faint">{each.cron && each.timezone !== "UTC" ? each.timezone : ""}</span></td><td class="hide-small muted">{each.topic}</td><td><State schedule={each} /></td><td><Time us={each.next_us?.[0]} /></td><td class="hide-small muted"><Time us={each.last?.[0]?.fired_at_us} /></td><td class="hide-small num">{each.fired ?? 0}</td></tr>
            ))}</tbody>
          </table></div>
        )}
      </Panel>
    </>
  );
}

const State = ({ schedule }: { schedule: Schedule }) => (schedule.error ? <span class="badge bad" title={schedule.error}>error</span> : schedule.paused ? <span class="badge warn">paused</span> : schedule.next_us?.length ? <span class="badge good">active</span> : <span class="badge">over</span>);

export function ScheduleScreen({ namespace: ns, name }: { namespace: string; name: string }) {
  const path = `${root(ns)}/schedules/${enc(name)}`;
  const { data, problem } = useLive<Schedule>(path, 1);
  const head = (children?: preact.ComponentChildren) => <Head title={<>{name} {data && <State schedule={data} />}</>} crumbs={[["Schedules", href(["schedules"], { ns: ns === "default" ? "" : ns })]]}>{children}</Head>;
  if (!data) return <>{head()}{problem ? <Failed problem={problem} /> : <Loading />}</>;
  const remove = () => confirm({ title: `Delete schedule ${name}`, text: "It fires no more. Messages that it has published stay.", action: "Delete", type: name, done: "The schedule is deleted", work: async () => {
    await ask("DELETE", path);
    go(["schedules"]);
  } });
  return (
    <div class="stack">
      {head(may("publish") && <>
        <button type="button" onClick={() => doing(() => post(`${path}/trigger`), "It has fired")}>Fire now</button>
        <button type="button" onClick={() => doing(() => post(`${path}/${data.paused ? "resume" : "pause"}`), data.paused ? "It goes on" : "It is paused")}>{data.paused ? "Resume" : "Pause"}</button>
        <button type="button" onClick={() => backfill(path)}>Backfill…</button>
        <button type="button" class="danger" onClick={remove}>Delete…</button></>)}
      {data.error && <div class="note-box bad" role="alert">{data.error}</div>}
      <div class="cols">
        <Panel title="Definition"><div class="body"><dl class="kv">
          <dt>When</dt><dd class="mono">{when(data)}</dd>
          {data.cron && <><dt>Time zone</dt><dd>{data.timezone ?? "UTC"}</dd></>}
          <dt>Topic</dt><dd><a class="link" href={href(["t", ns, data.topic])}>{data.topic}</a></dd>
          <dt>Key</dt><dd class="mono">{data.key ?? <span class="faint">none</span>}</dd>
          <dt>Value</dt><dd><pre class="code">{data.value ?? "bytes, or none"}</pre></dd>
          <dt>Overlap</dt><dd>{data.overlap ?? "allow"}</dd>
          <dt>Catch-up</dt><dd>{data.catch_up_policy ?? "last"}, within {data.catch_up ?? "1d"}</dd>
          <dt>Fired, left out</dt><dd>{data.fired ?? 0}, {data.skipped ?? 0}</dd>
          <dt>Made</dt><dd><Time us={data.created_us} /></dd>
        </dl></div></Panel>
        <Panel title="Next fires">{data.next_us?.length ? <div class="body stack" style={{ gap: "3px" }}>{data.next_us.map((us) => <Time key={us} us={us} />)}</div> : <Empty title={data.paused ? "It is paused" : "There are no more"} />}</Panel>
      </div>
      <Panel title="Last fires">
        {!data.last?.length ? <Empty title="It has not fired yet" /> : <div class="table-wrap"><table>
          <Head2 columns={[{ id: "n", label: "No.", num: true }, { id: "f", label: "For" }, { id: "a", label: "Fired" }, { id: "k", label: "Kind", small: true }, { id: "m", label: "Message" }]} />
          <tbody>{data.last.map((fire) => <tr key={fire.number}><td class="num">{fire.number}</td><td><Time us={fire.scheduled_for_us} /></td><td class="muted"><Time us={fire.fired_at_us} /></td><td class="hide-small">{fire.kind ?? "scheduled"}</td><td>{fire.error ? <span class="bad">{fire.error}</span> : fire.offset !== undefined ? <a class="link mono" href={href(["t", ns, data.topic, "messages"], { partition: fire.partition, at: fire.offset, order: "oldest" })}>{fire.partition}:{fire.offset}</a> : <span class="faint">–</span>}</td></tr>)}</tbody>
        </table></div>}
      </Panel>
    </div>
  );
}

function backfill(path: string): void {
  dialog.value = () => {
    const [since, setSince] = useState("");
    const [until, setUntil] = useState("");
    const run = () => doing(() => post(`${path}/backfill`, { since: new Date(since).toISOString(), until: new Date(until).toISOString() }), "The fires are made");
    return (
      <Dialog title="Make the fires of a time that is over" onSubmit={run} footer={<><button type="button" onClick={closeDialog}>Cancel</button><button type="submit" class="primary" disabled={!since || !until}>Backfill</button></>}>
        <div class="fields">
          <Field label="From"><input type="datetime-local" step="1" value={since} onInput={(event) => setSince(event.currentTarget.value)} /></Field>
          <Field label="Until"><input type="datetime-local" step="1" value={until} onInput={(event) => setUntil(event.currentTarget.value)} /></Field>
        </div>
      </Dialog>
    );
  };
}

function edit(ns: string): void {
  dialog.value = () => {
    const topics = useGet<{ topics: string[] }>(`${root(ns)}/topics`).data?.topics ?? [];
    const [form, setForm] = useState({ name: "", topic: "", kind: "cron", when: "", timezone: Intl.DateTimeFormat().resolvedOptions().timeZone || "UTC", value: "", key: "" });
    const set = (name: string) => (event: Event) => setForm({ ...form, [name]: (event.currentTarget as HTMLInputElement).value });
    const submit = () => doing(async () => {
      const at = form.kind === "at" ? new Date(form.when).toISOString() : form.when;
      await ask("PUT", `${root(ns)}/schedules/${enc(form.name)}`, { topic: form.topic, [form.kind]: at, timezone: form.timezone, value: form.value, key: form.key || null });
      go(["schedule", ns, form.name]);
    }, "The schedule is there");
    return (
      <Dialog title="New schedule" onSubmit={submit} footer={<><button type="button" onClick={closeDialog}>Cancel</button><button type="submit" class="primary" disabled={!form.name || !form.topic || !form.when}>Create</button></>}>
        <div class="fields">
          <Field label="Name"><input autofocus autocomplete="off" value={form.name} onInput={set("name")} /></Field>
          <Field label="Topic"><input list="topics" value={form.topic} onInput={set("topic")} /><datalist id="topics">{topics.map((each) => <option key={each} value={each} />)}</datalist></Field>
          <Field label="Kind"><select value={form.kind} onChange={set("kind")}><option value="cron">cron</option><option value="every">interval</option><option value="at">once</option></select></Field>
          <Field label={form.kind === "cron" ? "Cron" : form.kind === "every" ? "Interval" : "At"}>{form.kind === "at" ? <input type="datetime-local" value={form.when} onInput={set("when")} /> : <input class="mono" placeholder={form.kind === "cron" ? "30 2 * * *" : "15m"} value={form.when} onInput={set("when")} />}</Field>
          {form.kind === "cron" && <Field label="Time zone"><input value={form.timezone} onInput={set("timezone")} /></Field>}
          <Field label="Key"><input value={form.key} onInput={set("key")} /></Field>
          <Field label="Value" wide><textarea rows={4} value={form.value} onInput={set("value")} /></Field>
        </div>
      </Dialog>
    );
  };
}
