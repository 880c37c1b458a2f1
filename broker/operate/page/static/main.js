// The page: the screens and the parts around them. See docs/page.md.

import { Actions } from "./actions.js";
import { find, get, hasCredentials, path, useCredentials } from "./api.js";
import { Changes } from "./changes.js";
import { Detail } from "./detail.js";
import { h, replace, say } from "./dom.js";
import { EventsScreen } from "./events_screen.js";
import * as keys from "./keys.js";
import { ListScreen, listOf } from "./list_screen.js";
import { LISTS, title } from "./lists.js";
import { KINDS, Live } from "./live.js";
import * as login from "./login.js";
import { LogsScreen } from "./logs_screen.js";
import { OverviewScreen } from "./overview_screen.js";
import { address, changed, parse } from "./route.js";
import { shown, time } from "./text.js";

const part = (id) => document.getElementById(id);
const main = part("main");
const search = part("search");
const places = part("places");

const live = new Live();
let screen = null;
let place = null;
let started = false;

/** The interface of the page for its screens. */
const app = {
  actions: new Actions(part("action")),
  changes: new Changes(),
  views: [],
  /** The sizes of the registry. */
  registry: {},
  detail: null,
  go(hash) {
    if (hash !== location.hash) location.hash = hash;
  },
  renew: () => live.renew(),
  parameters: () => parse(location.hash).parameters,
  has: (name) => app.views.some((view) => view.name === name),
  announce: (text) => say(part("announcer"), text),
  name(status) {
    app.registry = status.registry;
    about.version = shown(String(status.version ?? ""));
    about.member = status.member ? `broker ${shown(String(status.member))}` : "";
    drawAbout();
  },
};
/** What the header says besides the name of the program: its version, the member of a cluster, and the user. */
const about = { version: "", member: "", user: "" };

function drawAbout() {
  say(part("about"), [about.version, about.member, about.user].filter(Boolean).join(" · "));
}

app.detail = new Detail(app, part("detail"));

// places

function menu() {
  const own = ["overview", "catalog", "services", "providers", "loads", "events", "logs", "plan"].filter(
    (target) => !Object.hasOwn(LISTS, target) || app.has(LISTS[target].view),
  );
  const names = { overview: "Overview", events: "Events", logs: "Logs", plan: "Plan" };
  const link = (target, text, number) =>
    h(
      "a",
      { href: address(target), "data-place": target, "aria-keyshortcuts": number <= 9 && number },
      text,
      number <= 9 ? h("kbd", { "aria-hidden": "true" }, number) : null,
    );
  const wires = Map.groupBy(
    app.views.filter((view) => !view.name.startsWith("broker ")),
    (view) => view.name.split(" ")[0],
  );
  replace(
    places,
    h(
      "ul",
      {},
      own.map((target, index) => h("li", {}, link(target, names[target] ?? LISTS[target].title, index + 1))),
    ),
    [...wires].map(([wire, views]) => [
      h("h2", {}, wire),
      h(
        "ul",
        {},
        views.map((view) => {
          const table = view.name.split(" ").slice(1).join(" ");
          return h("li", {}, link(`view/${wire}/${table}`, title(table)));
        }),
      ),
    ]),
    h("h2", {}, "Daemon"),
    h(
      "ul",
      {},
      ["listeners", "counters"].map((target, index) =>
        h("li", {}, link(target, LISTS[target].title, index + own.length + 1)),
      ),
    ),
    h("p", { id: "user" }),
  );
  mark();
}

async function whoami() {
  const found = await find("/v1/whoami").catch(() => null);
  const user = part("user");
  about.user = found?.name ? `user ${shown(found.name)}` : "";
  drawAbout();
  if (!user || found === null) return;
  const out = () => {
    useCredentials(null);
    location.reload();
  };
  replace(
    user,
    found.name ? ["Signed in as ", h("b", {}, shown(found.name))] : null,
    hasCredentials() ? h("button", { type: "button", class: "chip", click: out }, "Sign out") : null,
  );
}

function mark() {
  for (const link of places.querySelectorAll("a")) {
    if (link.dataset.place === place) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
}

function open(target) {
  if (target === "overview") return new OverviewScreen(app);
  if (target === "events") return new EventsScreen(app);
  if (target === "logs") return new LogsScreen(app);
  const list = listOf(target, app.views);
  return list === null ? null : new ListScreen(app, target, list);
}

function route() {
  // The start opens the address, once the views are known.
  if (!started) return;
  const { place: target, parameters } = parse(location.hash);
  if (target !== place || screen === null) {
    const next = open(target);
    if (next === null) {
      location.replace(address("overview"));
      return;
    }
    screen?.close();
    screen = next;
    place = target;
    replace(main, screen.element);
    document.title = `${screen.title} · ${part("name").textContent}`;
    search.placeholder = screen.search;
    search.setAttribute("aria-label", screen.search);
    mark();
    fold();
  }
  const typed = parameters.get("q") ?? "";
  if (search.value !== typed && document.activeElement !== search) search.value = typed;
  screen.show(parameters);
  live.renew();
}

function fold() {
  document.body.classList.remove("menu");
  part("menu").setAttribute("aria-expanded", "false");
}

part("menu").addEventListener("click", () => {
  const opened = document.body.classList.toggle("menu");
  part("menu").setAttribute("aria-expanded", String(opened));
  if (opened) places.querySelector("a")?.focus();
});
part("skip").addEventListener("click", () => main.focus());
addEventListener("hashchange", route);

// search

let typing = null;
function searchNow() {
  clearTimeout(typing);
  typing = null;
  const hash =
    place === "overview" ? address("services", { q: search.value }) : changed({ q: search.value || null, open: null });
  if (place === "overview" && search.value === "") return;
  if (place === "overview") location.hash = hash;
  else {
    // Each letter is no step of the history.
    history.replaceState(null, "", hash);
    route();
  }
}
search.addEventListener("input", () => {
  clearTimeout(typing);
  typing = setTimeout(searchNow, 200);
});
// A row that is clicked right after the last letter has the search in its address.
search.addEventListener("blur", () => typing !== null && searchNow());
part("search-form").addEventListener("submit", (event) => {
  event.preventDefault();
  searchNow();
});

// keyboard

keys.attach(
  {
    search() {
      search.focus();
      search.select();
      return true;
    },
    move(rows) {
      if (!screen?.table) return false;
      screen.table.move(rows);
      return true;
    },
    activate: () => screen?.table?.activate() ?? false,
    back() {
      if (document.body.classList.contains("menu")) fold();
      else if (app.detail.open) app.detail.close();
      else if (search.value !== "" || document.activeElement === search) {
        search.value = "";
        search.blur();
        if (place !== "overview") searchNow();
      } else return false;
      return true;
    },
    place(number) {
      const link = places.querySelector(`a[aria-keyshortcuts="${number}"]`);
      link?.click();
      return Boolean(link);
    },
    refresh() {
      screen?.refresh();
      app.detail.resync();
      return true;
    },
    theme() {
      part("theme").click();
      return true;
    },
  },
  part("help"),
);
part("help-button").addEventListener("click", () => part("help").showModal());

// the connection

function connection() {
  const line = part("connection");
  line.dataset.state = live.state;
  const texts = {
    connecting: "Connecting",
    live: "Live",
    paused: "Paused",
    lost: `Connection lost at ${time(live.since)}`,
  };
  say(part("connection-text"), texts[live.state]);
}

live.wants = () => screen?.wantsLoads ?? false;

let lost = false;
live.addEventListener("state", () => {
  connection();
  if (live.state === "live" && lost) {
    // Sessions and other state without events are loaded again, and the actions: the stream ends when rights change.
    lost = false;
    screen?.resync();
    app.actions
      .load()
      .catch(() => null)
      .then(() => app.detail.resync());
  }
  if (live.state === "lost") lost = true;
});
live.addEventListener("changes", ({ detail: changes }) => {
  const news = app.changes.add(changes);
  if (news.length === 0) return;
  screen?.changes(news);
  app.detail.changes(news);
});
live.addEventListener("resync", () => {
  screen?.resync();
  app.detail.resync();
});
document.addEventListener("visibilitychange", () => {
  if (document.hidden) live.pause();
  else {
    live.start();
    screen?.resync();
  }
});

// start

async function load() {
  app.views = (await get("/v1/views")).rows;
  const [, status, events] = await Promise.all([
    app.actions.load(),
    get("/v1/status"),
    get(path("/v1/events", { kinds: KINDS, limit: 200 })),
  ]);
  app.name(status);
  live.follow(events);
  app.changes.add(events.events);
}

async function start() {
  try {
    await load();
  } catch (error) {
    if (error.status === 401) return; // the form is open, and starts again
    setTimeout(start, 2_000);
    live.state = "lost";
    connection();
    replace(
      main,
      h(
        "section",
        { class: "screen" },
        h("h1", {}, error.status === 0 ? "No answer from the broker" : shown(error.title)),
        h("p", { role: "alert" }, shown(error.message), " Trying again."),
      ),
    );
    // Another user may have the right. Once: the button keeps the focus.
    if (error.status === 403 && about.user === "") whoami();
    return;
  }
  menu();
  whoami();
  screen?.close();
  screen = null;
  started = true;
  route();
  if (!document.hidden) live.restart();
}

login.attach(part("login"), start);
menu();
start();
