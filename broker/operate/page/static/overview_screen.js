// The farm at a glance: causes for attention, sizes, new services, busy providers.

import { ANSWER, find, get, here, path } from "./api.js";
import { h, replace, say } from "./dom.js";
import { markOf, subject, word } from "./changes.js";
import { histories, trendLabel } from "./list_screen.js";
import { checkMark, isShort, verdictMark } from "./lists.js";
import { reportLink } from "./report.js";
import { Pace, pauseFor } from "./pace.js";
import { address, providerAddress, serviceAddress } from "./route.js";
import { sparkline } from "./spark.js";
import { count, duration, plural, shown, when } from "./text.js";

/** Rows of each list here. */
const ROWS = 8;
/** Changes that are news: of services, not of providers and loads. */
const NEWS = new Set(["offered", "withdrawn", "checked"]);
/** Milliseconds between two looks at the state of a small farm, and at the tables of its wires. */
const EVERY = 10_000;
const SELDOM = 60_000;

/** The first screen. */
export class OverviewScreen {
  title = "Overview";
  search = "Search services";
  #histories = new Map();
  #status = null;
  #readiness = { reasons: [], degraded: [] };
  #plan = null;
  #failed = 0;
  #doubtful = 0; // checks and peers that have missed a sign of life
  #sizes = new Map();

  constructor(app) {
    this.app = app;
    const pauses = {
      state: () => EVERY,
      tables: () => Math.max(SELDOM, pauseFor(app.registry.providers ?? 0)),
      failing: () => Math.max(EVERY, pauseFor(app.registry.services ?? 0, true)),
      busy: () => Math.max(EVERY, pauseFor(app.registry.providers ?? 0, true)),
    };
    this.paces = {
      state: new Pace(() => this.#load(), pauses.state),
      tables: new Pace(() => this.#loadTables(), pauses.tables),
      failing: new Pace(() => this.#loadFailing(), pauses.failing),
      busy: new Pace(() => this.#loadBusy(), pauses.busy),
    };
    this.verdict = h("h1", { tabindex: -1 }, "Looking at the farm…");
    this.causes = h("ul", { class: "causes" });
    this.figures = h("dl", { class: "figures" });
    this.fresh = h("ol", { class: "rows" });
    this.failing = h("ul", { class: "rows" });
    this.short = h("ul", { class: "rows" });
    this.busy = h("ul", { class: "rows" });
    this.wires = h("ul", { class: "rows" });
    this.listeners = h("ul", { class: "rows" });
    this.failingPart = part("Failing checks", this.failing, address("services", { where: "check=failing" }));
    // Shown once there are some: most farms have none.
    this.failingPart.hidden = true;
    this.brokers = h("ul", { class: "rows" });
    this.brokersPart = part("Brokers", this.brokers, address("view/cluster/members"));
    // Shown by the member of a cluster.
    this.brokersPart.hidden = true;
    this.shortPart = part("Short of capacity", this.short, address("plan"));
    const buttons = app.actions.buttons("broker", {}, () => this.refresh());
    this.actionsPart = buttons && part("Actions", buttons, null);
    this.element = h(
      "section",
      { class: "screen overview" },
      h("div", { class: "verdict" }, this.verdict, this.causes),
      this.figures,
      h(
        "div",
        { class: "parts" },
        this.failingPart,
        this.brokersPart,
        this.shortPart,
        part("New", this.fresh, address("events")),
        part("Busiest", this.busy, address("loads")),
        part("Wires", this.wires, null),
        part("Listeners", this.listeners, address("listeners")),
        this.actionsPart,
      ),
    );
    this.rateTimer = setInterval(() => document.hidden || this.#rate(), 1_000);
    this.timer = setInterval(() => document.hidden || this.#ask(), EVERY);
  }

  show() {
    this.app.detail.hide();
    this.#news();
    this.#ask();
  }

  changes(changes) {
    this.#news();
    if (changes.some((change) => change.kind !== "load")) this.paces.state.ask();
  }

  /** Load everything again, now. */
  refresh() {
    this.#load();
    this.#loadTables();
    this.#loadFailing();
    this.#loadBusy();
  }

  /** Load again: changes were missed. */
  resync() {
    this.#ask();
  }

  close() {
    clearInterval(this.timer);
    clearInterval(this.rateTimer);
    for (const pace of Object.values(this.paces)) pace.stop();
  }

  #ask() {
    for (const [name, pace] of Object.entries(this.paces)) {
      if (name !== "failing" || this.#failed > 0) pace.ask();
    }
  }

  /** Load the small state. */
  async #load() {
    const [status, readiness, checks, doubts, cluster] = await settled([
      get("/v1/status"),
      ready(),
      get(path("/v1/counters", { pattern: "checks.failing" })),
      get(path("/v1/counters", { pattern: "*.doubtful" })),
      this.app.has("cluster members") ? get("/v1/cluster") : null,
    ]);
    if (status === undefined) return; // the line on the connection tells why
    this.#status = status;
    this.app.name(status);
    // What has no answer stays as it was: a cause for attention ends with an answer only.
    const failing = checks === undefined ? this.#failed : (checks.rows[0]?.value ?? 0);
    if (failing !== this.#failed) this.paces.failing.ask();
    this.#failed = failing;
    if (doubts !== undefined) {
      // The count of silent peers has those of the past, too.
      const present = doubts.rows.filter(({ name }) => name !== "silent_peers.doubtful");
      this.#doubtful = present.reduce((sum, { value }) => sum + value, 0);
    }
    this.#readiness = readiness ?? this.#readiness;
    if (cluster !== undefined) this.#drawBrokers(cluster?.members ?? []);
    this.#judge();
    this.#measure(status);
  }

  /** Load the tables that change slowly, or that no change announces. */
  async #loadTables() {
    const views = this.app.views.filter((view) => !view.name.startsWith("broker "));
    const [plan, listeners, ...sizes] = await settled([
      this.app.has("broker plan") ? get(path("/v1/plan", { limit: ROWS })) : null,
      get(path("/v1/listeners", { limit: 100 })),
      ...views.map((view) => get(path(view.path, { limit: 1 }))),
    ]);
    views.forEach((view, index) => sizes[index] && this.#sizes.set(view.name, sizes[index].total));
    if (plan !== undefined) {
      this.#plan = plan;
      this.#drawPlan(plan);
    }
    this.#drawWires(views);
    if (listeners !== undefined) this.#drawListeners(listeners);
    if (this.#status !== null) this.#judge();
  }

  async #loadFailing() {
    const where = { where: "check=failing", limit: ROWS };
    const [failing] = await settled([this.#failed > 0 ? get(path("/v1/services", where)) : { rows: [] }]);
    if (failing) this.#drawFailing(failing);
  }

  async #loadBusy() {
    const [loads] = await settled([get(path("/v1/loads", { sort: "-load", limit: ROWS }))]);
    if (loads) await this.#drawBusy(loads.rows);
  }

  #judge() {
    const causes = [];
    for (const { what, reason } of this.#readiness.reasons) {
      const target = what.startsWith("listener ") ? address("listeners") : null;
      // The drain is on purpose.
      if (what === "drain") causes.push(["warn", drainText(this.#readiness.drain) || shown(reason), null]);
      else causes.push(["bad", `${shown(what)}: ${shown(reason)}`, target]);
    }
    for (const { what, reason } of this.#readiness.degraded) {
      causes.push(["warn", `${shown(what)}: ${shown(reason)}`, address("view/cluster/members")]);
    }
    if (this.#failed > 0) {
      const text = `${plural(this.#failed, "health check")} ${this.#failed === 1 ? "fails" : "fail"}`;
      causes.push(["bad", text, address("services", { where: "check=failing" })]);
    }
    if (this.#doubtful > 0) {
      const text = `${plural(this.#doubtful, "peer")} ${this.#doubtful === 1 ? "is" : "are"} doubtful`;
      causes.push(["warn", text, address("services", { where: "check=doubtful" })]);
    }
    const short = (this.#plan?.rows ?? []).filter(isShort);
    if (short.length > 0) {
      const most = short.length === ROWS ? " or more" : "";
      causes.push(["warn", `${plural(short.length, "service")}${most} short of capacity by the plan`, address("plan")]);
    }
    const services = this.#status.registry.services;
    const calm = services === 0 ? "Ready, and no service is registered yet" : "Everything is up";
    say(
      this.verdict,
      causes.length === 0
        ? calm
        : causes.length === 1
          ? "One thing needs attention"
          : `${count(causes.length)} things need attention`,
    );
    this.verdict.dataset.state = causes.some(([kind]) => kind === "bad") ? "bad" : causes.length > 0 ? "warn" : "good";
    keep(this.causes, causes, ([kind, text, target]) =>
      h("li", {}, h("span", { class: `mark ${kind}` }, target ? h("a", { href: target }, text) : text)),
    );
    this.causes.hidden = causes.length === 0;
  }

  #measure(status) {
    const sizes = status.registry ?? {};
    const figures = [
      ["Services", sizes.services, address("services")],
      ["Providers", sizes.providers, address("providers")],
      ["Waiting finds", sizes.waits ?? sizes.waiting, null],
      ["Up for", duration(status.uptime), null],
    ].filter(([, value]) => value !== undefined);
    this.rate = h("span", {}, "");
    this.rateChart = h("span", { class: "chart" });
    replace(
      this.figures,
      figures.map(([name, value, target]) => {
        const text = typeof value === "number" ? count(value) : value;
        return h("div", {}, h("dt", {}, name), h("dd", {}, target ? h("a", { href: target }, text) : text));
      }),
      h("div", { class: "wide" }, h("dt", {}, "Changes per second"), h("dd", {}, this.rate, this.rateChart)),
    );
    this.#rate();
  }

  #rate() {
    if (this.rate === undefined) return;
    const rate = this.app.changes.rate(60);
    const recent = rate.slice(-10).reduce((sum, value) => sum + value, 0) / 10;
    say(this.rate, count(Math.round(recent * 10) / 10));
    const text = rate.join();
    if (text === this.rateText) return;
    this.rateText = text;
    replace(this.rateChart, sparkline(rate, "Changes of the registry in each of the last 60 seconds"));
  }

  #news() {
    const news = this.app.changes.list.filter((change) => NEWS.has(change.kind)).slice(0, ROWS);
    keep(
      this.fresh,
      news,
      (change) =>
        h(
          "li",
          {},
          change.service
            ? h("a", { href: serviceAddress(change.service) }, shown(change.service))
            : h("span", {}, shown(subject(change))),
          h("span", { class: `mark ${markOf(change)}` }, shown(word(change))),
          h("span", { class: "aside time" }, when(change.at)),
        ),
      "No service has come or gone lately.",
    );
  }

  #drawPlan(plan) {
    this.shortPart.hidden = !plan || plan.total === 0;
    keep(
      this.short,
      (plan?.rows ?? []).filter((row) => isShort(row) || row.days_until_short !== undefined),
      (row) =>
        h(
          "li",
          {},
          h("a", { href: address("plan", { open: row.name }) }, shown(row.name)),
          verdictMark(row),
          h(
            "span",
            { class: "aside" },
            row.days_until_short > 0 ? `in ${count(row.days_until_short)} d` : "",
            " ",
            reportLink(row.report, row.name),
          ),
        ),
      "The plan finds enough capacity for every service.",
    );
  }

  #drawFailing(failing) {
    const rows = failing?.rows ?? [];
    this.failingPart.hidden = rows.length === 0;
    keep(this.failing, rows, (row) =>
      h(
        "li",
        {},
        h("a", { href: serviceAddress(row.service) }, shown(row.service)),
        checkMark(row.check),
        h("span", { class: "aside" }, shown(row.reason ?? row.hostport ?? "")),
      ),
    );
  }

  async #drawBusy(rows) {
    const draw = () =>
      keep(
        this.busy,
        rows.map((row) => ({ ...row, loads: this.#histories.get(row.provider) ?? [] })),
        (row) =>
          h(
            "li",
            {},
            h("a", { href: providerAddress(row.provider) }, shown(row.label || `provider ${row.provider}`)),
            row.loads.length > 0 ? sparkline([...row.loads, row.load], trendLabel(row.loads, row.load)) : null,
            h("span", { class: "aside" }, count(row.load)),
          ),
        "No provider has reported a load.",
      );
    draw();
    if (rows.length === 0) return;
    this.#histories = await histories(
      rows.map((row) => row.provider),
      this.#histories,
    );
    draw();
  }

  #drawBrokers(members) {
    this.brokersPart.hidden = members.length === 0;
    keep(this.brokers, members, (row) => {
      const [kind, word] = brokerMark(row);
      const lag = row.lag_ms === undefined ? "lag unknown" : `lag ${count(Math.round(row.lag_ms))} ms`;
      return h(
        "li",
        {},
        h("a", { href: address("view/cluster/members", { q: row.member }) }, shown(row.member)),
        h("span", { class: `mark ${kind}` }, word),
        h("span", { class: "aside" }, `${plural(row.providers, "provider")}, ${lag}`),
      );
    });
  }

  #drawWires(views) {
    const wires = Map.groupBy(views, (view) => view.name.split(" ")[0]);
    keep(
      this.wires,
      [...wires].map(([wire, tables]) => [
        wire,
        tables.map((view) => [view.name.split(" ")[1], this.#sizes.get(view.name)]),
      ]),
      ([wire, tables]) =>
        h(
          "li",
          {},
          h("span", { class: "wire" }, wire),
          h(
            "span",
            { class: "sizes" },
            tables.map(([table, size]) =>
              h(
                "a",
                { href: address(`view/${wire}/${table}`) },
                `${table} `,
                h("b", {}, size === undefined ? "?" : count(size)),
              ),
            ),
          ),
        ),
    );
  }

  #drawListeners({ rows }) {
    keep(
      this.listeners,
      rows.slice(0, 20),
      (row) =>
        h(
          "li",
          {},
          h("span", {}, shown(row.name ?? "")),
          h(
            "span",
            { class: `mark ${row.ready === false ? "bad" : "good"}` },
            row.ready === false ? "not ready" : "ready",
          ),
          h("span", { class: "aside mono" }, shown(row.where ?? row.address ?? "")),
        ),
      "No listener.",
    );
  }
}

function part(name, rows, target) {
  const heading = h("h2", {}, name);
  return h(
    "section",
    { class: "part", "aria-label": name },
    heading,
    target ? h("a", { class: "all", href: target, "aria-label": `All: ${name}` }, "all") : null,
    rows,
  );
}

/** Redraw a short list if its values differ from those that it shows. */
function keep(list, values, draw, empty = "") {
  const text = JSON.stringify(values);
  if (list.drawn === text) return;
  list.drawn = text;
  replace(list, values.length > 0 ? values.map(draw) : empty ? h("li", { class: "none" }, empty) : null);
}

/** Return the mark of a broker of the cluster, and its word. */
function brokerMark(row) {
  if (row.draining) return ["warn", "draining"];
  if (row.here) return ["good", "this one"];
  return row.linked ? ["good", "linked"] : ["bad", "no link"];
}

/** Return the answer of /readyz, which has the reasons in a 503 too; with the state of the drain, if there is one. */
async function ready() {
  const response = await fetch(here("/readyz"), {
    credentials: "omit",
    cache: "no-store",
    signal: AbortSignal.timeout(ANSWER),
  });
  const answer = await response.json();
  if (answer.reasons.some(({ what }) => what === "drain")) answer.drain = await find("/v1/drain").catch(() => null);
  return answer;
}

/** Return the state of a drain as a sentence, or "" if there is none. */
function drainText(drain) {
  if (!drain || drain.state === "off") return "";
  const peers = Object.values(drain.remaining).reduce((sum, number) => sum + number, 0);
  const left = peers === 0 ? "no peer is left" : `${plural(peers, "peer")} left`;
  const time = drain.state === "draining" ? `, ${duration(drain.seconds)} until the deadline` : "";
  return `The broker drains (${shown(drain.state)}): new peers are refused, ${left}${time}`;
}

/** Return the values of promises; undefined for those that failed. */
async function settled(promises) {
  const answers = await Promise.allSettled(promises);
  return answers.map((answer) => (answer.status === "fulfilled" ? answer.value : undefined));
}
