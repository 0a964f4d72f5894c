import { useState } from "preact/hooks";
import { post, session } from "../api";
import { Brand } from "../frame";
import type { Session } from "../types";
import { Failed, Field } from "../ui";
import type { Problem } from "../api";

export function Login() {
  const [key, setKey] = useState("");
  const [problem, setProblem] = useState<Problem>();
  const [busy, setBusy] = useState(false);
  const submit = async (event: Event) => {
    event.preventDefault();
    setBusy(true);
    try {
      session.value = await post<Session>("v1/session", { key: key.trim() });
    } catch (error) {
      setProblem(error as Problem);
    } finally {
      setBusy(false);
    }
  };
  return (
    <main class="login">
      <form onSubmit={submit}>
        <Brand />
        <p class="muted">This server asks for an API key. The key stays on the server: the browser keeps a session, for twelve hours.</p>
        <Field label="API key"><input type="password" autocomplete="current-password" autofocus value={key} placeholder="psk_…" onInput={(event) => setKey(event.currentTarget.value)} /></Field>
        <Failed problem={problem} />
        <button type="submit" class="primary" disabled={busy || !key.trim()}>Log in</button>
      </form>
    </main>
  );
}
