import { useState } from "preact/hooks";
import { ask, enc, post, session } from "../api";
import { useGet } from "../live";
import type { ApiKey } from "../types";
import { closeDialog, confirm, Dialog, dialog, doing, Empty, Failed, Field, Head, Head2, Loading, Panel, Time } from "../ui";
import { showSecret } from "./webhooks";

export function Keys() {
  const keys = useGet<{ keys: ApiKey[] }>("v1/keys");
  const revoke = (key: ApiKey) => confirm({ title: `Revoke ${key.name}`, text: "It is good for nothing, at once. What uses it is cut off.", action: "Revoke", type: key.name, done: `${key.name} is revoked`, work: async () => {
    await ask("DELETE", `v1/keys/${enc(key.id)}`);
    keys.reload();
  } });
  return (
    <>
      <Head title="API keys"><button type="button" class="primary" onClick={() => create(keys.reload)}>New key</button></Head>
      <Failed problem={keys.problem} />
      <Panel label="API keys">
        {!keys.data ? <Loading /> : keys.data.keys.length === 0 ? <Empty title="There are no keys">Whoever reaches this server may do everything. From the first key on, everybody needs one.</Empty> : (
          <div class="table-wrap"><table>
            <Head2 columns={[{ id: "n", label: "Name" }, { id: "r", label: "Role" }, { id: "s", label: "Namespace" }, { id: "c", label: "Made" }, { id: "i", label: "Id", small: true }, { id: "a", label: "" }]} />
            <tbody>{keys.data.keys.map((key) => <tr key={key.id}><td class="name clip">{key.name} {key.name === session.value?.name && <span class="badge accent">yours</span>}</td><td>{key.role}</td><td class="muted">{key.namespace ?? "all"}</td><td class="muted"><Time us={key.created_at_us} /></td><td class="hide-small mono faint">{key.id}</td><td class="actions"><button type="button" class="small danger" onClick={() => revoke(key)}>Revoke…</button></td></tr>)}</tbody>
          </table></div>
        )}
      </Panel>
    </>
  );
}

function create(made: () => void): void {
  dialog.value = () => {
    const first = session.value && !session.value.keys;
    const [form, setForm] = useState({ name: "", role: first ? "admin" : "readonly", namespace: "" });
    const set = (name: string) => (event: Event) => setForm({ ...form, [name]: (event.currentTarget as HTMLInputElement).value });
    const submit = async () => {
      let token = "";
      const ok = await doing(async () => {
        token = (await post<ApiKey>("v1/keys", { name: form.name, role: form.role, namespace: form.namespace || null })).token!;
        if (first && form.role === "admin") session.value = await post("v1/session", { key: token });
        made();
      });
      if (ok) setTimeout(() => showSecret(token, "key"));
      return ok;
    };
    return (
      <Dialog title="New API key" onSubmit={submit} footer={<><button type="button" onClick={closeDialog}>Cancel</button><button type="submit" class="primary" disabled={!form.name}>Create</button></>}>
        {first && <p class="muted">This is the first key: from now on everybody needs one. Make one for an admin, or nobody can make more.</p>}
        <div class="fields">
          <Field label="Name"><input autofocus autocomplete="off" value={form.name} onInput={set("name")} /></Field>
          <Field label="Role"><select value={form.role} onChange={set("role")}><option value="admin">admin: everything</option><option value="producer">producer: publish</option><option value="consumer">consumer: receive, look</option><option value="readonly">readonly: look</option></select></Field>
          <Field label="Namespace" hint="empty: all"><input value={form.namespace} onInput={set("namespace")} /></Field>
        </div>
      </Dialog>
    );
  };
}
