import { useState } from "preact/hooks";
import { ask, enc, may, post, root, withQuery } from "../api";
import { diff } from "../diff";
import { namespace } from "../frame";
import { useGet } from "../live";
import { go, href, q, refine } from "../route";
import { closeDialog, confirm, copy, Dialog, dialog, doing, Empty, Failed, Field, Head, Head2, Loading, Panel, Search, Time } from "../ui";

interface Version { version: number; id: number; type: string; created_us: number; deleted?: boolean }
interface Subject { subject: string; compatibility: string; mode: string; versions: Version[] }
interface Registered { id: number; type: string; schema: string; version?: number; references?: { name: string; subject: string; version: number }[] }
interface Report { compatible: boolean; level: string; problems: { message?: string; path?: string; kind?: string }[] }

const LEVELS = ["none", "backward", "backward_transitive", "forward", "forward_transitive", "full", "full_transitive"];

export function Schemas() {
  const ns = namespace() ?? "default";
  const found = useGet<{ subjects: Subject[]; next: string | null }>(withQuery(`${root(ns)}/schemas/subjects`, { prefix: q("search"), after: q("after"), limit: 50 }));
  return (
    <>
      <Head title="Schemas"><Search name="search" label="Subjects that begin with" value={q("search")} reset={{ after: null }} />{may("publish") && <button type="button" class="primary" onClick={() => register(ns, "")}>Register</button>}</Head>
      <Failed problem={found.problem} />
      <Panel label="Subjects" foot={found.data && (found.data.next !== null || q("after")) && <>{q("after") && <button type="button" class="small" onClick={() => refine({ after: null })}>First page</button>}{found.data.next !== null && <button type="button" class="small" onClick={() => refine({ after: found.data!.next })}>Next page</button>}</>}>
        {!found.data ? <Loading /> : found.data.subjects.length === 0 ? <Empty title={`Namespace ${ns} has no schemas`}>A schema says what the messages of a topic look like: JSON Schema, Avro or Protobuf.</Empty> : (
          <div class="table-wrap"><table>
            <Head2 columns={[{ id: "s", label: "Subject" }, { id: "t", label: "Type" }, { id: "v", label: "Version", num: true }, { id: "i", label: "Id", num: true }, { id: "c", label: "Compatibility", small: true }, { id: "w", label: "Registered" }]} />
            <tbody>{found.data.subjects.map((each) => {
              const last = each.versions[each.versions.length - 1];
              return <tr key={each.subject}><td class="name clip"><a href={href(["schema", ns, each.subject])}>{each.subject}</a></td><td>{last?.type}</td><td class="num">{last?.version}</td><td class="num mono">{last?.id}</td><td class="hide-small muted">{each.compatibility}</td><td class="muted"><Time us={last?.created_us} /></td></tr>;
            })}</tbody>
          </table></div>
        )}
      </Panel>
    </>
  );
}

function laid(schema: Registered): string {
  if (schema.type === "protobuf") return schema.schema;
  try {
    return JSON.stringify(JSON.parse(schema.schema), null, 2);
  } catch {
    return schema.schema;
  }
}

export function SchemaScreen({ namespace: ns, subject }: { namespace: string; subject: string }) {
  const path = `${root(ns)}/schemas/subjects/${enc(subject)}`;
  const described = useGet<Subject>(path);
  const versions = described.data?.versions ?? [];
  const shown = Number(q("version")) || versions[versions.length - 1]?.version;
  const against = Number(q("against")) || 0;
  const one = useGet<Registered>(shown ? `${path}/versions/${shown}` : null).data;
  const other = useGet<Registered>(against ? `${path}/versions/${against}` : null).data;
  const crumbs: [string, string][] = [["Schemas", href(["schemas"], { ns: ns === "default" ? "" : ns })]];
  if (!described.data) return <><Head title={subject} crumbs={crumbs} />{described.problem ? <Failed problem={described.problem} /> : <Loading />}</>;
  const level = (picked: string) => doing(async () => {
    await ask("PUT", `${root(ns)}/schemas/compatibility`, { subject, level: picked });
    described.reload();
  }, "The level is set");
  const remove = () => confirm({ title: `Delete subject ${subject}`, text: "All its versions. Their ids stay known, so that messages can be read.", action: "Delete", type: subject, done: "The subject is deleted", work: async () => {
    await ask("DELETE", path);
    go(["schemas"]);
  } });
  return (
    <div class="stack">
      <Head title={subject} crumbs={crumbs}>
        <label class="row muted">Compatibility <select disabled={!may("manage")} value={described.data.compatibility} onChange={(event) => level(event.currentTarget.value)}>{LEVELS.map((each) => <option key={each} value={each}>{each.replace("_", ", ")}</option>)}</select></label>
        {may("publish") && <button type="button" onClick={() => register(ns, subject, one)}>New version…</button>}
        {may("manage") && <button type="button" class="danger" onClick={remove}>Delete…</button>}
      </Head>
      <Panel title={`Version ${shown ?? "–"}`} note={one && `${one.type}, id ${one.id}`} actions={<>
        <select aria-label="Version" value={shown} onChange={(event) => refine({ version: event.currentTarget.value })}>{versions.map((each) => <option key={each.version} value={each.version}>version {each.version}</option>)}</select>
        <select aria-label="Compare with" value={against} onChange={(event) => refine({ against: event.currentTarget.value === "0" ? null : event.currentTarget.value })}><option value="0">compare with…</option>{versions.filter((each) => each.version !== shown).map((each) => <option key={each.version} value={each.version}>version {each.version}</option>)}</select>
        {one && <button type="button" class="small" onClick={() => copy(one.schema)}>Copy</button>}</>}>
        <div class="body">
          {!one ? <Loading /> : against && other ? <pre class="code diff">{diff(laid(other), laid(one)).map((line, at) => <span key={at} class={line.kind}>{line.kind === "new" ? "+ " : line.kind === "gone" ? "- " : "  "}{line.text}{"\n"}</span>)}</pre> : <pre class="code">{laid(one)}</pre>}
          {one?.references?.length ? <p class="muted" style={{ marginTop: "8px" }}>Refers to {one.references.map((each) => <a class="link" key={each.name} href={href(["schema", ns, each.subject], { version: each.version })}>{each.subject} {each.version} </a>)}</p> : null}
        </div>
      </Panel>
      <Panel title="Versions"><div class="table-wrap"><table>
        <Head2 columns={[{ id: "v", label: "Version" }, { id: "i", label: "Id", num: true }, { id: "t", label: "Type" }, { id: "w", label: "Registered" }]} />
        <tbody>{[...versions].reverse().map((each) => <tr key={each.version}><td><a class="link" href={href(["schema", ns, subject], { version: each.version, against: each.version - 1 || null })}>{each.version}</a></td><td class="num mono">{each.id}</td><td>{each.type}</td><td class="muted"><Time us={each.created_us} /></td></tr>)}</tbody>
      </table></div></Panel>
    </div>
  );
}

function register(ns: string, subject: string, like?: Registered): void {
  dialog.value = () => {
    const [form, setForm] = useState({ subject, type: like?.type ?? "json", schema: like ? laid(like) : "" });
    const [report, setReport] = useState<Report | null>(null);
    const set = (name: string) => (event: Event) => {
      setForm({ ...form, [name]: (event.currentTarget as HTMLInputElement).value });
      setReport(null);
    };
    const path = `${root(ns)}/schemas/subjects/${enc(form.subject)}`;
    const body = { schema: form.schema, type: form.type, references: like?.references ?? [] };
    const check = () => doing(async () => setReport(await post<Report>(`${path}/check`, body)));
    const submit = () => doing(async () => {
      await post(`${path}/versions`, body);
      go(["schema", ns, form.subject], {});
      dispatchEvent(new Event("reload-screen"));
    }, "It is registered");
    return (
      <Dialog wide title={subject ? `New version of ${subject}` : "Register a schema"} onSubmit={submit} footer={<><button type="button" disabled={!form.schema || !form.subject} onClick={check}>Check</button><button type="button" onClick={closeDialog}>Cancel</button><button type="submit" class="primary" disabled={!form.schema || !form.subject}>Register</button></>}>
        <div class="fields">
          <Field label="Subject"><input readOnly={!!subject} autocomplete="off" value={form.subject} onInput={set("subject")} /></Field>
          <Field label="Type"><select value={form.type} onChange={set("type")}><option value="json">JSON Schema</option><option value="avro">Avro</option><option value="protobuf">Protobuf</option></select></Field>
          <Field label="Schema" wide><textarea rows={14} spellcheck={false} value={form.schema} onInput={set("schema")} /></Field>
        </div>
        {report && (report.compatible ? <p class="good" role="status">It is compatible ({report.level}).</p> : <div class="note-box bad" role="alert"><pre class="any" style={{ whiteSpace: "pre-wrap" }}>{report.problems.map((each) => each.message ?? JSON.stringify(each)).join("\n")}</pre></div>)}
      </Dialog>
    );
  };
}
