import { useState } from "preact/hooks";
import { ask, enc, may, post, root } from "../api";
import { namespace } from "../frame";
import { useGet, useLive } from "../live";
import { groupPath } from "../message";
import { go, href } from "../route";
import type { Attempt, Webhook } from "../types";
import { Card, closeDialog, confirm, copy, Dialog, dialog, doing, Empty, Failed, Field, Head, Head2, Loading, Panel, Time } from "../ui";
import { moveGroup } from "./groups";

const State = ({ hook }: { hook: Webhook }) => (hook.disabled ? <span class="badge bad">disabled</span> : hook.settings.paused ? <span class="badge warn">paused</span> : hook.failing_since_us !== null ? <span class="badge bad">failing</span> : <span class="badge good">active</span>);
/** Which messages it posts, in words. */
const chosen = ({ filter }: Webhook["settings"]) => [filter.key_prefix && `a key that begins with ${filter.key_prefix}`, filter.types.length > 0 && `the type ${filter.types.join(" or ")}`, ...Object.entries(filter.headers).map(([name, value]) => `the header ${name}: ${value}`)].filter(Boolean).join(", ");
const share = (hook: Webhook) => (hook.delivered + hook.failed ? `${((hook.delivered / (hook.delivered + hook.failed)) * 100).toFixed(1)} %` : "–");

export function Webhooks() {
  const ns = namespace() ?? "default";
  const { data, problem } = useLive<{ webhooks: Webhook[] }>(`${root(ns)}/webhooks`, 2);
  return (
    <>
      <Head title="Webhooks">{may("manage") && <button type="button" class="primary" onClick={() => create(ns)}>New webhook</button>}</Head>
      <Failed problem={problem} />
      <Panel label="Webhooks">
        {!data ? <Loading /> : data.webhooks.length === 0 ? <Empty title={`Namespace ${ns} has no webhooks`}>A webhook posts the messages of a topic to a URL, signed and retried.</Empty> : (
          <div class="table-wrap"><table>
            <Head2 columns={[{ id: "n", label: "Webhook" }, { id: "s", label: "State" }, { id: "t", label: "Topic", small: true }, { id: "u", label: "URL", small: true }, { id: "d", label: "Delivered", num: true }, { id: "f", label: "Failed", num: true }, { id: "p", label: "Success", num: true, small: true }]} />
            <tbody>{data.webhooks.map((hook) => <tr key={hook.name}><td class="name clip"><a href={href(["webhook", ns, hook.name])}>{hook.name}</a></td><td><State hook={hook} /></td><td class="hide-small muted">{hook.settings.topic}</td><td class="hide-small name clip muted">{hook.settings.url}</td><td class="num">{hook.delivered.toLocaleString("en")}</td><td class={hook.failed ? "num bad" : "num zero"}>{hook.failed}</td><td class="num hide-small">{share(hook)}</td></tr>)}</tbody>
          </table></div>
        )}
      </Panel>
    </>
  );
}

export function WebhookScreen({ namespace: ns, name }: { namespace: string; name: string }) {
  const path = `${root(ns)}/webhooks/${enc(name)}`;
  const { data: hook, problem } = useLive<Webhook>(path, 1);
  const attempts = useLive<{ attempts: Attempt[] }>(may("manage") ? `${path}/attempts` : null, 2).data?.attempts;
  const [open, setOpen] = useState<Attempt | null>(null);
  const crumbs: [string, string][] = [["Webhooks", href(["webhooks"], { ns: ns === "default" ? "" : ns })]];
  if (!hook) return <><Head title={name} crumbs={crumbs} />{problem ? <Failed problem={problem} /> : <Loading />}</>;
  const s = hook.settings;
  const rotate = () => confirm({ title: "A new secret", text: "For a day requests are signed with the old one as well.", action: "Rotate", danger: false, work: async () => {
    const { secret } = await post<{ secret: string }>(`${path}/rotate`);
    setTimeout(() => showSecret(secret));
  } });
  const remove = () => confirm({ title: `Delete webhook ${name}`, text: "With its queue group; its dead letters stay.", action: "Delete", type: name, done: "The webhook is deleted", work: async () => {
    await ask("DELETE", path);
    go(["webhooks"]);
  } });
  const stopped = s.paused || hook.disabled;
  return (
    <div class="stack">
      <Head title={<>{name} <State hook={hook} /></>} crumbs={crumbs}>{may("manage") && <>
        <button type="button" onClick={() => doing(() => post(`${path}/test`), "A test is on its way")}>Send a test</button>
        <button type="button" onClick={() => doing(() => post(`${path}/${stopped ? "resume" : "pause"}`), stopped ? "It goes on" : "It is paused")}>{hook.disabled ? "Enable" : stopped ? "Resume" : "Pause"}</button>
        <button type="button" onClick={() => moveGroup(`Replay for ${name}`, [], (to) => post(`${groupPath(ns, s.topic, hook.group)}/seek`, { to }))}>Replay…</button>
        <button type="button" onClick={rotate}>Rotate secret…</button>
        <button type="button" class="danger" onClick={remove}>Delete…</button></>}</Head>
      {hook.disabled && <div class="note-box bad" role="alert">It is disabled: {hook.disabled}</div>}
      <div class="cards">
        <Card label="Delivered" value={hook.delivered.toLocaleString("en")} note="since the server began" />
        <Card label="Failed" value={hook.failed.toLocaleString("en")} tone={hook.failed ? "bad" : undefined} note={hook.failing_since_us ? <>failing since <Time us={hook.failing_since_us} /></> : "not failing now"} />
        <Card label="Success" value={share(hook)} />
      </div>
      <Panel title="Where to, and how"><div class="body"><dl class="kv">
        <dt>URL</dt><dd class="mono">{s.url}</dd>
        <dt>Topic</dt><dd><a class="link" href={href(["t", ns, s.topic])}>{s.topic}</a></dd>
        <dt>Reads as</dt><dd><a class="link" href={href(["t", ns, s.topic, "groups"])}>{hook.group}</a></dd>
        <dt>Payload</dt><dd>{s.payload}</dd>
        <dt>Only those with</dt><dd>{chosen(s) || <span class="faint">all messages</span>}</dd>
        {s.batch && <><dt>In one request</dt><dd>up to {s.batch.max_messages} messages</dd></>}
        <dt>At once</dt><dd>{s.concurrency}{s.rate !== null && `, ${s.rate} a second at most`}, timeout {s.timeout}</dd>
        <dt>Retries</dt><dd>{s.retries === "topic" ? "as the topic has them" : "by the standard: ten within three days"}</dd>
        <dt>Made</dt><dd><Time us={hook.created_at_us} /></dd>
      </dl></div></Panel>
      {may("manage") && <Panel title="Attempts" note="the last hundred since the server began">
        {!attempts?.length ? <Empty title="Nothing was posted yet" /> : <div class="table-wrap"><table>
          <Head2 columns={[{ id: "w", label: "When" }, { id: "s", label: "Answer" }, { id: "n", label: "Attempt", num: true, small: true }, { id: "t", label: "Took", num: true, small: true }, { id: "m", label: "Message", small: true }, { id: "e", label: "Error or response" }]} />
          <tbody>{attempts.map((each) => {
            const good = each.status !== undefined && each.status < 300;
            const isOpen = open?.at_us === each.at_us && open.message_id === each.message_id;
            return <><tr class="line" key={`${each.at_us} ${each.message_id}`}><td class="muted"><Time us={each.at_us} /></td><td><span class={`badge ${good ? "good" : "bad"}`}>{each.status ?? "none"}</span>{each.test && <span class="badge"> test</span>}</td><td class="hide-small num">{each.attempt}</td><td class="hide-small num">{each.took_ms} ms</td><td class="hide-small mono clip faint">{each.message_id}</td><td class="name clip"><button type="button" class="plain clip" style={{ padding: 0, minHeight: 0, maxWidth: "100%", display: "block" }} aria-expanded={isOpen} onClick={() => setOpen(isOpen ? null : each)}>{each.error || each.response || <span class="faint">empty</span>}</button></td></tr>
              {isOpen && <tr class="open"><td colSpan={6}><pre class="code">{[each.error, each.response].filter(Boolean).join("\n\n") || "empty"}</pre></td></tr>}</>;
          })}</tbody>
        </table></div>}
      </Panel>}
    </div>
  );
}

export function showSecret(secret: string, what = "secret"): void {
  dialog.value = () => (
    <Dialog title={`The ${what}, shown this once`} footer={<><button type="button" onClick={() => copy(secret)}>Copy</button><button type="button" class="primary" onClick={closeDialog}>I have it</button></>}>
      <pre class="code">{secret}</pre>
    </Dialog>
  );
}

function create(ns: string): void {
  dialog.value = () => {
    const topics = useGet<{ topics: string[] }>(`${root(ns)}/topics`).data?.topics ?? [];
    const [form, setForm] = useState({ name: "", topic: "", url: "https://", payload: "envelope", retries: "topic", concurrency: "8", rate: "", batch: "", key_prefix: "", types: "" });
    const set = (name: string) => (event: Event) => setForm({ ...form, [name]: (event.currentTarget as HTMLInputElement).value });
    const submit = async () => {
      let secret = "";
      const types = form.types.split(",").map((each) => each.trim()).filter(Boolean);
      const settings = {
        topic: form.topic, url: form.url, payload: form.payload, retries: form.retries, concurrency: Number(form.concurrency),
        rate: form.rate ? Number(form.rate) : null,
        batch: form.batch ? { max_messages: Number(form.batch) } : null,
        filter: { key_prefix: form.key_prefix || null, types },
      };
      const ok = await doing(async () => {
        secret = (await ask<{ secret: string }>("PUT", `${root(ns)}/webhooks/${enc(form.name)}`, { settings })).secret;
        go(["webhook", ns, form.name]);
      });
      if (ok && secret) setTimeout(() => showSecret(secret));
      return ok;
    };
    return (
      <Dialog title="New webhook" onSubmit={submit} footer={<><button type="button" onClick={closeDialog}>Cancel</button><button type="submit" class="primary" disabled={!form.name || !form.topic}>Create</button></>}>
        <div class="fields">
          <Field label="Name"><input autofocus autocomplete="off" value={form.name} onInput={set("name")} /></Field>
          <Field label="Topic"><input list="topics" value={form.topic} onInput={set("topic")} /><datalist id="topics">{topics.map((each) => <option key={each} value={each} />)}</datalist></Field>
          <Field label="URL" wide><input type="url" value={form.url} onInput={set("url")} /></Field>
          <Field label="Payload"><select value={form.payload} onChange={set("payload")}><option value="envelope">envelope of the standard</option><option value="raw">the value itself</option></select></Field>
          <Field label="Retries"><select value={form.retries} onChange={set("retries")}><option value="topic">as the topic has them</option><option value="standard">ten within three days</option></select></Field>
          <Field label="Requests at once"><input type="number" min="1" max="100" value={form.concurrency} onInput={set("concurrency")} /></Field>
          <Field label="Requests a second" hint="empty: no limit"><input type="number" min="0.01" step="any" value={form.rate} onInput={set("rate")} /></Field>
          <Field label="Messages in a request" hint="empty: one"><input type="number" min="1" max="100" value={form.batch} onInput={set("batch")} /></Field>
          <Field label="Only keys that begin with"><input value={form.key_prefix} onInput={set("key_prefix")} /></Field>
          <Field label="Only the types" hint="header type; a, b"><input value={form.types} onInput={set("types")} /></Field>
        </div>
      </Dialog>
    );
  };
}
