import { useEffect, useRef, useState } from "preact/hooks";
import { enc, get, may, post, topicPath, withQuery } from "../api";
import { count } from "../format";
import { useGet } from "../live";
import { keyText, MessageDetail, preview } from "../message";
import { href, q, refine } from "../route";
import type { Letter, LetterGroup, LetterGroups, LetterPage } from "../types";
import { closeDialog, Dialog, dialog, doing, Empty, Failed, Field, Head2, Loading, Panel, Time, toast } from "../ui";
import type { Of } from "./topic";

interface Choice { reason?: string; group?: string; error_line?: string; letters?: { partition: number; offset: number; id: string }[] }

export function LettersOf({ namespace, topic }: Of & { group?: string }) {
  const path = topicPath(namespace, topic);
  const groups = useGet<LetterGroups>(`${path}/dead-letter-groups`);
  const picked: Choice | null = q("reason") || q("group") || q("error") || q("of") ? { reason: q("reason") || undefined, group: q("group") || undefined, error_line: q("of") ? q("error") : undefined } : null;
  const [turn, setTurn] = useState(0);
  const again = () => {
    groups.reload();
    setTurn(turn + 1);
  };
  const pick = (each: LetterGroup | null) => refine({ letter: null, ...(each === null ? { reason: null, group: null, error: null, of: null } : { reason: each.reason, group: each.group, error: each.error, of: "1" }) });
  const done = () => {
    pick(null); // those that were picked are gone
    again();
  };
  const isPicked = (each: LetterGroup) => picked !== null && picked.reason === each.reason && (picked.group ?? "") === each.group && picked.error_line === each.error;
  return (
    <div class="stack">
      <Panel title="By reason and error" note={groups.data && !groups.data.complete ? `the oldest ${count(groups.data.counted)} letters` : undefined}
        actions={may("manage") && groups.data && groups.data.counted > 0 && <><button type="button" class="small" onClick={() => bulk(path, topic, "redrive", picked ?? {}, done)}>Redrive {picked ? "these" : "all"}…</button><button type="button" class="small danger" onClick={() => bulk(path, topic, "purge", picked ?? {}, done)}>Purge {picked ? "these" : "all"}…</button></>}
        foot={picked && <button type="button" class="plain small" onClick={() => pick(null)}>Show all letters</button>}>
        {groups.problem ? <div class="body"><Failed problem={groups.problem} /></div> : !groups.data ? <Loading /> : groups.data.groups.length === 0 ? <Empty title="There are no dead letters">What was rejected, failed too often or expired would be here.</Empty> : (
          <div class="table-wrap"><table>
            <Head2 columns={[{ id: "r", label: "Reason" }, { id: "e", label: "Error" }, { id: "g", label: "Group", small: true }, { id: "c", label: "Letters", num: true }, { id: "f", label: "First", small: true }, { id: "l", label: "Last", small: true }]} />
            <tbody>{groups.data.groups.map((each) => (
              <tr key={`${each.reason} ${each.group} ${each.error}`} class={isPicked(each) ? "open" : ""}>
                <td><span class="badge bad">{each.reason.replace("_", " ")}</span></td>
                <td class="name clip"><button type="button" class="plain clip" style={{ padding: 0, minHeight: 0, maxWidth: "100%", display: "block" }} aria-pressed={isPicked(each)} onClick={() => pick(isPicked(each) ? null : each)}>{each.error || <span class="faint">no error was given</span>}</button></td>
                <td class="hide-small muted">{each.group}</td>
                <td class="num">{count(each.count)}</td>
                <td class="hide-small muted"><Time us={each.first_us} /></td>
                <td class="hide-small muted"><Time us={each.last_us} /></td>
              </tr>
            ))}</tbody>
          </table></div>
        )}
      </Panel>
      <List key={turn} path={path} namespace={namespace} topic={topic} picked={picked} changed={again} />
    </div>
  );
}

const firstLine = (error: string) => error.trim().split("\n")[0].trim().slice(0, 200);
const fits = (letter: Letter, picked: Choice | null) => picked === null || ((picked.reason === undefined || letter.origin.reason === picked.reason) && (picked.group === undefined || letter.origin.group === picked.group) && (picked.error_line === undefined || firstLine(letter.origin.error) === picked.error_line));

function List({ path, namespace, topic, picked, changed }: { path: string; namespace: string; topic: string; picked: Choice | null; changed: () => void }) {
  const [letters, setLetters] = useState<Letter[]>([]);
  const [next, setNext] = useState<string | null>("");
  const [open, setOpen] = useState("");
  const [busy, setBusy] = useState(true);
  const single = q("letter"); // partition-offset, as a trace names it
  const about = JSON.stringify([picked, single]);
  const load = async (after: string, before: Letter[]) => {
    setBusy(true);
    await doing(async () => {
      if (single) {
        setLetters([await get<Letter>(`${path}/dead-letters/${enc(single)}`)]);
        setOpen(single);
        setNext(null);
        return;
      }
      const found = [...before];
      let at: string | null = after;
      for (let page = 0; page < 10 && at !== null && found.length < before.length + 50; page += 1) {
        const got: LetterPage = await get<LetterPage>(withQuery(`${path}/dead-letters`, { after: at, limit: picked ? 500 : 50 }));
        found.push(...got.letters.filter((each) => fits(each, picked)));
        at = got.next;
      }
      setLetters(found);
      setNext(at);
    });
    setBusy(false);
  };
  useEffect(() => {
    setLetters([]);
    void load("", []);
  }, [about]);
  const one = (what: "redrive" | "purge", letter: Letter) => doing(async () => {
    await post(`${path}/dead-letters/${what}`, { letters: [{ partition: letter.partition, offset: letter.message.offset, id: letter.message.id }] });
    changed();
  }, what === "redrive" ? "It is back in its topic" : "It is gone");
  const all = single && <button type="button" class="plain small" onClick={() => refine({ letter: null })}>Show all letters</button>;
  if (!letters.length) return busy ? <Panel title="Letters"><Loading /></Panel> : single ? <Panel title="Letters" foot={all}><Empty title="This letter is not here any more">It was redriven or purged.</Empty></Panel> : null;
  return (
    <Panel title={single ? `Letter ${single}` : "Letters"} note={single ? undefined : "partition by partition, the oldest first"} foot={all || next !== null && <button type="button" class="small" disabled={busy} onClick={() => load(next, letters)}>Show more</button>}>
      <div class="table-wrap"><table class="messages">
        <Head2 columns={[{ id: "w", label: "Died" }, { id: "n", label: "Attempts", num: true }, { id: "k", label: "Key", small: true }, { id: "e", label: "Error and value" }]} />
        <tbody>{letters.map((each) => {
          const id = `${each.partition}-${each.message.offset}`;
          const o = each.origin;
          return <>
            <tr key={id} class={`line ${open === id ? "open" : ""}`} onClick={() => setOpen(open === id ? "" : id)}>
              <td class="muted"><Time us={each.message.timestamp_us} /></td><td class="num">{o.attempts}</td><td class="hide-small mono clip" style={{ maxWidth: "140px" }}>{keyText(each.message)}</td>
              <td class="value"><button type="button" class="plain clip" aria-expanded={open === id} style={{ width: "100%", padding: 0, minHeight: 0, color: "inherit", display: "block", textAlign: "left" }}>{o.error ? <span class="bad">{firstLine(o.error)} </span> : null}<span class="mono faint">{preview(each.message)}</span></button></td>
            </tr>
            {open === id && <tr key={`${id}+`} class="open"><td colSpan={4}>
              {o.error && <pre class="code bad" style={{ marginBottom: "10px" }}>{o.error}</pre>}
              <dl class="kv" style={{ marginBottom: "8px" }}>
                <dt>Gave up</dt><dd>{o.reason.replace("_", " ")}, in group {o.group || "–"}, after {o.attempts} attempt{o.attempts === 1 ? "" : "s"}</dd>
                <dt>Last consumer</dt><dd>{o.consumer || <span class="faint">without a name</span>}</dd>
                <dt>Came from</dt><dd class="mono"><a class="link" href={href(["t", namespace, topic, "messages"], { partition: o.partition, at: o.offset, order: "oldest" })}>{o.partition}:{o.offset}</a> <span class="faint">{o.id}</span></dd>
                <dt>Delivered</dt><dd>first <Time us={o.first_delivery_us} />, last <Time us={o.last_delivery_us} /></dd>
              </dl>
              <MessageDetail m={each.message} partition={each.partition} namespace={namespace} topic={`${topic}.dlq`}>{may("manage") && <><button type="button" class="small" onClick={() => one("redrive", each)}>Redrive</button><button type="button" class="small danger" onClick={() => one("purge", each)}>Purge</button></>}</MessageDetail>
            </td></tr>}
          </>;
        })}</tbody>
      </table></div>
    </Panel>
  );
}

/** Count first, then do it bit by bit, as fast as is wanted, until it is done or somebody stops it. */
function bulk(path: string, topic: string, what: "redrive" | "purge", choice: Choice, changed: () => void): void {
  dialog.value = () => {
    const [total, setTotal] = useState<number | null>(null);
    const [typed, setTyped] = useState("");
    const [rate, setRate] = useState("");
    const [to, setTo] = useState("group");
    const [done, setDone] = useState<number | null>(null);
    const stop = useRef(false);
    useEffect(() => {
      void doing(async () => setTotal((await post<{ count: number }>(`${path}/dead-letters/count`, choice)).count));
      return () => {
        stop.current = true;
      };
    }, []);
    const running = done !== null;
    const run = async () => {
      let moved = 0;
      setDone(0);
      const ok = await doing(async () => {
        const perSecond = Number(rate) || 0;
        while (moved < total! && !stop.current) {
          const limit = Math.min(total! - moved, perSecond ? Math.ceil(perSecond) : 500);
          const began = Date.now();
          const { count: some } = await post<{ count: number }>(`${path}/dead-letters/${what}`, { ...choice, limit, ...(what === "redrive" ? { to } : {}) });
          if (some === 0) break;
          moved += some;
          setDone(moved);
          if (perSecond && moved < total!) await new Promise((resolve) => setTimeout(resolve, Math.max(0, (some / perSecond) * 1000 - (Date.now() - began))));
        }
      });
      if (ok) toast(`${count(moved)} letter${moved === 1 ? "" : "s"} ${what === "redrive" ? "redriven" : "purged"}${stop.current ? ", then stopped" : ""}`);
      changed();
    };
    const filters = [choice.reason && `reason ${choice.reason.replace("_", " ")}`, choice.group && `group ${choice.group}`, choice.error_line !== undefined && `error “${choice.error_line || "none"}”`].filter(Boolean);
    return (
      <Dialog title={`${what === "redrive" ? "Redrive" : "Purge"} dead letters of ${topic}`} onSubmit={run}
        footer={running ? <button type="button" onClick={() => { stop.current = true; closeDialog(); }}>Stop</button> : <><button type="button" onClick={closeDialog}>Cancel</button><button type="submit" class={what === "purge" ? "danger primary" : "primary"} disabled={!total || typed !== String(total)}>{what === "redrive" ? "Redrive" : "Purge"}</button></>}>
        <p class="muted any">{filters.length ? `Those with ${filters.join(", ")}.` : "All of them."} {what === "redrive" ? "They go back to their topic as new messages." : "They are gone for good."}</p>
        {total === null ? <p role="status">Counting…</p> : <p><b>{count(total)}</b> letter{total === 1 ? "" : "s"}.</p>}
        {running ? <><progress max={total!} value={done} aria-label="Progress" /><p class="muted" role="status">{count(done)} of {count(total!)}</p></> : total ? (
          <div class="fields">
            {what === "redrive" && <Field label="To"><select value={to} onChange={(event) => setTo(event.currentTarget.value)}><option value="group">the group in which each failed</option><option value="topic">every reader of the topic</option></select></Field>}
            <Field label="At most, a second" hint="empty: no limit"><input type="number" min="1" value={rate} onInput={(event) => setRate(event.currentTarget.value)} /></Field>
            <Field label={`Type ${total} to go on`}><input autocomplete="off" inputMode="numeric" value={typed} onInput={(event) => setTyped(event.currentTarget.value)} /></Field>
          </div>
        ) : null}
      </Dialog>
    );
  };
}
