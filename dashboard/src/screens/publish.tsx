import { useEffect, useState } from "preact/hooks";
import { get, topicPath } from "../api";
import { headerText, publish } from "../message";
import { href } from "../route";
import type { FoundPage } from "../types";
import { doing, Field, Panel, Time, toast } from "../ui";
import type { Of } from "./topic";

const EMPTY = { value: "", base64: false, key: "", headers: "", priority: "normal", delay: "", ttl: "", partition: "", dedup: "" };

export function PublishForm({ namespace, topic, stats, from }: Of & { from: string }) {
  const [form, setForm] = useState(EMPTY);
  const [sent, setSent] = useState<{ partition?: number; offset?: number; deliver_at_us?: number; duplicate?: boolean }[]>([]);
  const [busy, setBusy] = useState(false);
  const set = (name: keyof typeof EMPTY) => (event: Event) => setForm({ ...form, [name]: (event.currentTarget as HTMLInputElement).value });
  useEffect(() => {
    const place = /^(\d+):(\d+)$/.exec(from);
    if (!place) return;
    void get<FoundPage>(`${topicPath(namespace, topic)}/search?partition=${place[1]}&at=${place[2]}&limit=1`).then(({ found: [first] }) => {
      if (first?.message.offset !== Number(place[2])) return toast("This message is gone", true);
      const m = first.message;
      setForm({ ...EMPTY, value: m.value ?? m.value_base64 ?? "", base64: m.value_base64 !== undefined, key: m.key ?? "", priority: m.priority ?? "normal", headers: Object.entries(m.headers ?? {}).map(([name, value]) => `${name}: ${headerText(value)}`).join("\n") });
    }, () => undefined);
  }, [from]);
  const submit = async (event: Event) => {
    event.preventDefault();
    setBusy(true);
    await doing(async () => {
      const headers = Object.fromEntries(form.headers.split("\n").filter((line) => line.trim()).map((line) => {
        const [name, ...value] = line.split(":");
        const text = value.join(":").trim();
        return [name.trim(), text.startsWith("base64:") ? { base64: text.slice(7) } : text];
      }));
      const message = { ...(form.base64 ? { value_base64: form.value } : { value: form.value }), key: form.key || undefined, headers: Object.keys(headers).length ? headers : undefined, priority: form.priority, delay: form.delay || undefined, ttl: form.ttl || undefined, partition: form.partition === "" ? undefined : Number(form.partition), dedup_id: form.dedup || undefined };
      const answer = await publish(namespace, topic, message);
      setSent([answer, ...sent].slice(0, 8));
    });
    setBusy(false);
  };
  return (
    <div class="cols">
      <Panel title="Publish a message">
        <form onSubmit={submit}>
          <div class="body fields">
            <Field label={form.base64 ? "Value, as base64" : "Value"} wide><textarea rows={9} spellcheck={false} value={form.value} onInput={set("value")} /></Field>
            <Field label="Key"><input spellcheck={false} value={form.key} onInput={set("key")} /></Field>
            <Field label="Priority"><select value={form.priority} onChange={set("priority")}>{["critical", "high", "normal", "low", "background"].map((each) => <option key={each}>{each}</option>)}</select></Field>
            <Field label="Headers" hint="name: value, a line each" wide><textarea rows={2} spellcheck={false} value={form.headers} onInput={set("headers")} /></Field>
            <Field label="Delay" hint="as 10s, 2h"><input value={form.delay} onInput={set("delay")} /></Field>
            <Field label="Time to live"><input value={form.ttl} onInput={set("ttl")} /></Field>
            {stats.partitions.length > 1 && <Field label="Partition"><select value={form.partition} onChange={set("partition")}><option value="">by key, or in turn</option>{stats.partitions.map((each) => <option key={each.partition}>{each.partition}</option>)}</select></Field>}
            <Field label="Deduplication id"><input value={form.dedup} onInput={set("dedup")} /></Field>
            <label class="check wide"><input type="checkbox" checked={form.base64} onChange={() => setForm({ ...form, base64: !form.base64 })} /> The value is base64</label>
          </div>
          <div class="foot"><button type="submit" class="primary" disabled={busy}>Publish</button></div>
        </form>
      </Panel>
      {sent.length > 0 && (
        <Panel title="Published"><div class="body stack" style={{ gap: "6px" }}>{sent.map((each, at) => (
          <div key={sent.length - at}>{each.deliver_at_us ? <>is delivered <Time us={each.deliver_at_us} /></> : <a class="link mono" href={href(["t", namespace, topic, "messages"], { partition: each.partition, at: each.offset, order: "oldest" })}>partition {each.partition}, offset {each.offset}</a>} {each.duplicate && <span class="badge warn">duplicate: not stored again</span>}</div>
        ))}</div></Panel>
      )}
    </div>
  );
}
