import { signal } from "@preact/signals";
import { render } from "preact";
import { useEffect } from "preact/hooks";
import { get, Problem, session } from "./api";
import { Frame, listenToKeys } from "./frame";
import { route } from "./route";
import { Audit } from "./screens/audit";
import { DeadLetters } from "./screens/dead";
import { Delayed } from "./screens/delayed";
import { Groups, StreamGroupScreen } from "./screens/groups";
import { Keys } from "./screens/keys";
import { Login } from "./screens/login";
import { Namespaces, NamespaceScreen } from "./screens/namespaces";
import { OverviewScreen } from "./screens/overview";
import { Schedules, ScheduleScreen } from "./screens/schedules";
import { Schemas, SchemaScreen } from "./screens/schemas";
import { TopicScreen } from "./screens/topic";
import { Topics } from "./screens/topics";
import { Traces } from "./screens/traces";
import { Transactions } from "./screens/transactions";
import { Webhooks, WebhookScreen } from "./screens/webhooks";
import "./style.css";
import "./theme";
import type { Session } from "./types";
import { Dialogs, Empty, Failed, Toasts } from "./ui";

const unreachable = signal<Problem | undefined>(undefined);
const turn = signal(0);
addEventListener("reload-screen", () => (turn.value += 1));

async function begin(): Promise<void> {
  try {
    session.value = await get<Session>("v1/session");
    unreachable.value = undefined;
  } catch (error) {
    const problem = error as Problem;
    if (problem.status === 401) session.value = null;
    else {
      unreachable.value = problem;
      setTimeout(begin, 2000);
    }
  }
}

function Screen() {
  const [first = "overview", ...rest] = route.value.path;
  switch (first) {
    case "overview": return <OverviewScreen />;
    case "topics": return <Topics />;
    case "t": return <TopicScreen namespace={rest[0] ?? "default"} topic={rest[1] ?? ""} tab={rest[2] ?? ""} rest={rest.slice(3)} />;
    case "groups": return <Groups />;
    case "group": return <StreamGroupScreen namespace={rest[0]} group={rest[1]} />;
    case "dead": return <DeadLetters />;
    case "delayed": return <Delayed />;
    case "schedules": return <Schedules />;
    case "schedule": return <ScheduleScreen namespace={rest[0]} name={rest[1]} />;
    case "webhooks": return <Webhooks />;
    case "webhook": return <WebhookScreen namespace={rest[0]} name={rest[1]} />;
    case "traces": return <Traces />;
    case "transactions": return <Transactions />;
    case "schemas": return <Schemas />;
    case "schema": return <SchemaScreen namespace={rest[0]} subject={rest[1]} />;
    case "keys": return <Keys />;
    case "namespaces": return <Namespaces />;
    case "namespace": return <NamespaceScreen name={rest[0] ?? "default"} />;
    case "audit": return <Audit />;
    default: return <Empty title="There is nothing here">The address is not one of this dashboard.</Empty>;
  }
}

function App() {
  const place = route.value.path.slice(0, 3).join(" / ");
  useEffect(() => {
    document.title = place ? `${route.value.path.filter((each) => each !== "t").join(" / ")} · Penstock` : "Penstock";
    scrollTo(0, 0);
  }, [place]);
  if (unreachable.value) return <main class="login"><Failed problem={unreachable.value} /></main>;
  if (session.value === undefined) return null;
  if (session.value === null) return <><Login /><Dialogs /><Toasts /></>;
  return <><Frame><Screen key={`${place} ${turn.value}`} /></Frame><Dialogs /><Toasts /></>;
}

listenToKeys();
void begin();
render(<App />, document.getElementById("app")!);
