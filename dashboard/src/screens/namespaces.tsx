import { useState } from "preact/hooks";
import { ask, enc, may, root, session } from "../api";
import { bytes, compact, count, duration, rate } from "../format";
import { namespace } from "../frame";
import { useGet, useLive } from "../live";
import { go, href, q, refine } from "../route";
import type { NamespaceDescription, Quotas } from "../types";
import { closeDialog, confirm, Dialog, dialog, doing, Empty, Failed, Field, Head, Head2, Loading, Pager, Panel, Search, Time } from "../ui";

const A_PAGE = 20;
const HOUR_MS = 3_600_000;

type Limit = Exclude<keyof Quotas, "policy">;
interface Kind { id: Limit; label: string; hint?: string; show: (n: number) => string }

const perSecond = (n: number) => `${rate(n)}/s`;
const KINDS: Kind[] = [
  { id: "publish_messages", label: "Published", hint: "messages a second", show: perSecond },
  { id: "receive_messages", label: "Received", hint: "messages a second", show: perSecond },
  { id: "publish_bytes", label: "Published bytes", hint: "a second", show: (n) => `${bytes(n)}/s` },
  { id: "receive_bytes", label: "Received bytes", hint: "a second", show: (n) => `${bytes(n)}/s` },
  { id: "storage_bytes", label: "Storage", hint: "bytes", show: bytes },
  { id: "topics", label: "Topics", show: compact },
  { id: "partitions", label: "Partitions", show: compact },
  { id: "groups", label: "Groups", show: compact },
  { id: "connections", label: "Connections", show: compact },
  { id: "delayed", label: "Delayed messages", show: compact },
  { id: "schedules", label: "Schedules", show: compact },
  { id: "webhooks", label: "Webhooks", show: compact },
  { id: "message_bytes", label: "Size of a message", hint: "bytes", show: bytes },
  { id: "retention_ms", label: "Longest retention", hint: "hours", show: (ms) => duration(ms * 1000) },
];
const IN_LIST = KINDS.filter((each) => ["publish_messages", "receive_messages", "storage_bytes", "topics"].includes(each.id));
const POLICIES: Record<string, string> = { delay: "delayed, then refused", refuse: "refused at once", warn: "let through, with a line in the log" };

/** Namespaces are made, limited and deleted with keys of all of them. */
const manages = () => may("manage") && session.value?.namespace === null;

export function Namespaces() {
  const only = namespace();
  const { data, problem, reload } = useGet<{ namespaces: string[] }>(only === null ? "v1/namespaces" : null);
  const all = only === null ? data?.namespaces : [only];
  const found = all?.filter((each) => each.includes(q("search")));
  const offset = Number(q("offset")) || 0;
  return (
    <>
      <Head title="Namespaces">{only === null && <Search name="search" label="Search namespaces" value={q("search")} reset={{ offset: null }} />}{manages() && <button type="button" class="primary" onClick={() => create(reload)}>New namespace</button>}</Head>
      <Failed problem={problem} />
      <Panel label="Namespaces" foot={found && <Pager offset={offset} limit={A_PAGE} total={found.length} onMove={(to) => refine({ offset: to || null })} />}>
        {!found ? <Loading /> : found.length === 0 ? <Empty title="No namespace has such a name" /> : (
          <div class="table-wrap"><table>
            <Head2 columns={[{ id: "n", label: "Namespace" }, ...IN_LIST.map((each) => ({ id: each.id, label: each.label, small: each.id !== "storage_bytes" })), { id: "r", label: "Refused", num: true }]} />
            <tbody>{found.slice(offset, offset + A_PAGE).map((each) => <Row key={each} name={each} />)}</tbody>
          </table></div>
        )}
      </Panel>
    </>
  );
}

function Row({ name }: { name: string }) {
  const { data } = useLive<NamespaceDescription>(`${root(name)}/usage`, 2);
  return (
    <tr>
      <td class="name clip"><a href={href(["namespace", name])}>{name}</a></td>
      {IN_LIST.map((each) => <td key={each.id} class={each.id === "storage_bytes" ? "" : "hide-small"}>{data && <Used kind={each} of={data} />}</td>)}
      <td class={data?.refused ? "num warn" : "num zero"}>{data && count(data.refused ?? 0)}</td>
    </tr>
  );
}

/** What is used, of what may be. */
function Used({ kind, of }: { kind: Kind; of: NamespaceDescription }) {
  const used = of.usage[kind.id];
  const most = of.quotas[kind.id] ?? null;
  if (used === undefined) return most === null ? <span class="faint">no quota</span> : <>at most {kind.show(most)}</>;
  if (most === null) return <>{kind.show(used)} <span class="faint">no quota</span></>;
  const share = most > 0 ? Math.min(used / most, 1) : 1;
  const tone = share >= 1 ? "bad" : share >= 0.8 ? "warn" : "";
  return (
    <>
      <span class={`nowrap ${tone}`}>{kind.show(used)} <span class="faint">of {kind.show(most)}</span></span>
      <div class="bar" role="meter" aria-label={kind.label} aria-valuemin={0} aria-valuemax={most} aria-valuenow={Math.min(used, most)} aria-valuetext={`${kind.show(used)} of ${kind.show(most)}`}><i class={tone} style={{ width: `${share * 100}%` }} /></div>
    </>
  );
}

export function NamespaceScreen({ name }: { name: string }) {
  const { data, problem } = useLive<NamespaceDescription>(`${root(name)}/usage`, 1);
  const head = (children?: preact.ComponentChildren) => <Head title={name} crumbs={[["Namespaces", href(["namespaces"])]]}>{children}</Head>;
  if (!data) return <>{head()}{problem ? <Failed problem={problem} /> : <Loading />}</>;
  return (
    <div class="stack">
      {head(<>
        <a class="button" href={href(["topics"], { ns: session.value?.namespace === null ? name : null })}>Topics</a>
        {manages() && <><button type="button" onClick={() => edit(data)}>Edit quotas…</button><button type="button" class="danger" onClick={() => remove(data)}>Delete…</button></>}
      </>)}
      <Failed problem={problem} />
      <div class="cols">
        <Panel title="Use and quotas">
          <div class="body"><dl class="kv">{KINDS.map((each) => <><dt>{each.label}</dt><dd><Used kind={each} of={data} /></dd></>)}</dl></div>
        </Panel>
        <Panel title="Limits at work">
          <div class="body"><dl class="kv">
            <dt>What is too fast is</dt><dd>{POLICIES[data.quotas.policy ?? "delay"]}</dd>
            <dt>Answers delayed</dt><dd>{count(data.delayed_answers ?? 0)} <span class="faint">since the start</span></dd>
            <dt>Refused</dt><dd>{count(data.refused ?? 0)} <span class="faint">since the start</span></dd>
            <dt>Made</dt><dd>{data.created_us ? <Time us={data.created_us} /> : <span class="faint">by its topics</span>}</dd>
          </dl></div>
        </Panel>
      </div>
    </div>
  );
}

function remove({ namespace: name, usage }: NamespaceDescription): void {
  confirm({
    title: `Delete namespace ${name}`,
    text: `All that is in it is deleted with it: ${usage.topics === 1 ? "1 topic" : `${count(usage.topics)} topics`} with all messages and dead letters, schedules, webhooks and quotas. Nothing brings them back.`,
    action: "Delete", type: name, done: "The namespace is deleted",
    work: async () => {
      await ask("DELETE", `v1/namespaces/${enc(name)}?force=true`);
      go(["namespaces"]);
    },
  });
}

function create(made: () => void): void {
  dialog.value = () => {
    const [name, setName] = useState("");
    const submit = () => doing(async () => {
      await ask("PUT", `v1/namespaces/${enc(name)}`);
      made();
      go(["namespace", name]);
    }, "The namespace is there");
    return (
      <Dialog title="New namespace" onSubmit={submit} footer={<><button type="button" onClick={closeDialog}>Cancel</button><button type="submit" class="primary" disabled={!name}>Create</button></>}>
        <Field label="Name" hint="a to z, digits and -"><input autofocus autocomplete="off" spellcheck={false} value={name} onInput={(event) => setName(event.currentTarget.value.trim())} /></Field>
      </Dialog>
    );
  };
}

function edit({ namespace: name, quotas }: NamespaceDescription): void {
  dialog.value = () => {
    const scale = (id: Limit) => (id === "retention_ms" ? HOUR_MS : 1);
    const [form, setForm] = useState<Record<string, string>>(Object.fromEntries(KINDS.map(({ id }) => [id, typeof quotas[id] === "number" ? String(quotas[id]! / scale(id)) : ""])));
    const [policy, setPolicy] = useState(quotas.policy ?? "delay");
    const submit = () => doing(() => {
      const given = KINDS.filter(({ id }) => form[id] !== "").map(({ id }) => [id, id === "retention_ms" ? Math.round(Number(form[id]) * HOUR_MS) : Number(form[id])]);
      return ask("PUT", `v1/namespaces/${enc(name)}/quotas`, { quotas: { ...Object.fromEntries(given), policy } });
    }, "The quotas are set");
    return (
      <Dialog wide title={`Quotas of ${name}`} onSubmit={submit} footer={<><button type="button" onClick={closeDialog}>Cancel</button><button type="submit" class="primary">Save</button></>}>
        <p class="muted">What is empty has no limit.</p>
        <div class="fields">
          {KINDS.map(({ id, label, hint }) => <Field key={id} label={label} hint={hint}><input type="number" min="0" step="any" value={form[id]} onInput={(event) => setForm({ ...form, [id]: event.currentTarget.value })} /></Field>)}
          <Field label="What is too fast is"><select value={policy} onChange={(event) => setPolicy(event.currentTarget.value)}>{Object.entries(POLICIES).map(([id, text]) => <option key={id} value={id}>{text}</option>)}</select></Field>
        </div>
      </Dialog>
    );
  };
}
