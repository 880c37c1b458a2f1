// The panel of details: a service with its instances and the reasons why each is here, a provider, or a row of a view.

import { find, get, path, segment } from "./api.js";
import { subject, word } from "./changes.js";
import { h, replace } from "./dom.js";
import { histories, trendLabel } from "./list_screen.js";
import { checkMark, providerLink, title, verdictMark } from "./lists.js";
import { reportLink } from "./report.js";
import { Pace } from "./pace.js";
import { changed, serviceAddress } from "./route.js";
import { sparkline } from "./spark.js";
import { ago, count, format, plural, shown, time, when } from "./text.js";

/** Instances that the panel shows of one service. */
const INSTANCES = 50;
/** Events that it shows. */
const EVENTS = 12;
/** Characters of a name or text in the panel. */
const LONG = 2_000;

/** The panel. */
export class Detail {
  #subject = null;
  #turn = 0;
  #before = null;

  constructor(app, element) {
    this.app = app;
    this.element = element;
    this.heading = h("h2", { tabindex: -1, id: "detail-title" });
    this.content = h("div", { class: "content", tabindex: 0, role: "region", "aria-labelledby": "detail-title" });
    element.append(
      h(
        "div",
        { class: "bar" },
        this.heading,
        h("button", { type: "button", class: "close", "aria-label": "Close details", click: () => this.close() }, "×"),
      ),
      this.content,
    );
    this.pace = new Pace(
      () => this.#load(),
      () => 3_000,
    );
  }

  get open() {
    return !this.element.hidden;
  }

  /** Show the details of a place's item: of a service's name, or of a provider's id. */
  show(place, key) {
    const kind = place === "services" || place === "plan" ? "service" : "provider";
    if (this.#subject?.kind === kind && this.#subject.key === key) return;
    this.#begin({ kind, key, load: () => (kind === "service" ? this.#service(key) : this.#provider(key)) });
    this.heading.textContent = kind === "service" ? shown(key, LONG) : `Provider ${shown(key)}`;
    replace(this.content, h("p", { class: "empty" }, "Loading…"));
    this.#load();
  }

  /** Show all columns of a row. */
  row(list, columns, row) {
    this.#begin({ kind: "row", key: null, load: null });
    this.heading.textContent = list.title;
    const [wire, table] = (list.view ?? "").split(" ");
    const place = PLACES[table];
    replace(
      this.content,
      h(
        "dl",
        { class: "facts" },
        columns
          .filter((column) => row[column.name] !== undefined)
          .map((column) => fact(column.title ?? column.name, whole(row[column.name], column.unit), column.help)),
      ),
      place ? this.app.actions.buttons(place, { ...row, wire }) : null,
    );
    this.heading.focus();
  }

  /** Hide the panel. */
  hide() {
    if (this.#subject === null) return;
    this.#subject = null;
    this.#turn += 1;
    this.pace.stop();
    this.element.hidden = true;
    document.body.classList.remove("detailed");
    if (this.#before?.isConnected) this.#before.focus({ preventScroll: true });
    this.#before = null;
  }

  /** Close the panel: its part of the address too. */
  close() {
    const row = this.#subject?.kind === "row";
    if (row) this.hide();
    else this.app.go(changed({ open: null }));
  }

  /** Handle changes: the details are loaded again if they concern the subject. */
  changes(changes) {
    const { kind, key } = this.#subject ?? {};
    if (kind === "service" && changes.some((change) => change.service === key)) this.pace.ask();
    if (kind === "provider" && changes.some((change) => String(change.provider) === key)) this.pace.ask();
  }

  /** Load again: changes were missed. */
  resync() {
    if (this.#subject?.load) this.pace.ask();
  }

  #begin(subject) {
    if (this.#subject === null) this.#before = document.activeElement;
    this.#subject = subject;
    this.#turn += 1;
    this.element.hidden = false;
    document.body.classList.add("detailed");
    this.content.scrollTop = 0;
  }

  async #load() {
    const turn = this.#turn;
    try {
      const parts = await this.#subject?.load?.();
      if (turn === this.#turn && parts) replace(this.content, parts);
    } catch (error) {
      if (turn === this.#turn) replace(this.content, h("p", { class: "strip", role: "alert" }, shown(error.message)));
    }
  }

  async #service(name) {
    const [why, plan] = await Promise.all([
      get(`/v1/why/${segment(name)}`).catch(gone),
      // Without an answer about the plan, the instances are shown all the same.
      this.app.has("broker plan")
        ? get(path("/v1/plan", { where: `name=${name}`, limit: 1 })).catch((error) => ({ failed: error.message }))
        : null,
    ]);
    const entries = why?.entries ?? [];
    const ids = [...new Set(entries.map((entry) => entry.provider).filter((id) => id))].slice(0, INSTANCES);
    const loads = ids.length > 0 ? await histories(ids) : new Map();
    const planned = plan?.rows?.find((row) => row.name === name);
    return [
      h(
        "p",
        { class: "lead" },
        entries.length === 0
          ? "No instance is registered now."
          : `${plural(entries.length, "instance")}${entries.length > INSTANCES ? `, the first ${INSTANCES}` : ""}, ${asOf()}`,
      ),
      entries.slice(0, INSTANCES).map((entry) => this.#entry(entry, loads.get(entry.provider))),
      planned && this.#planned(planned),
      plan?.failed && h("p", { class: "strip", role: "alert" }, `Capacity plan: ${shown(plan.failed)}`),
      this.app.actions.buttons("service", { service: name }, () => this.resync()),
      this.#events((change) => change.service === name),
    ];
  }

  #entry(entry, loads = []) {
    return h(
      "section",
      { class: "entry", "aria-label": `Instance ${shown(entry.hostport ?? entry.address ?? "")}` },
      h(
        "h3",
        {},
        h("span", { class: "mono" }, shown(entry.hostport ?? entry.address ?? "instance")),
        entry.restored ? h("span", { class: "mark warn" }, "restored") : null,
        checkOf(entry),
      ),
      loads.length > 0 ? sparkline(loads, trendLabel(loads)) : null,
      h("dl", { class: "facts" }, whyFacts(entry)),
    );
  }

  #planned(row) {
    return h(
      "section",
      { class: "entry", "aria-label": "Capacity plan" },
      h("h3", {}, "Capacity plan", verdictMark(row)),
      h("dl", { class: "facts" }, this.#columns("broker plan", row, ["name", "verdict", "report"])),
      row.report ? h("p", {}, reportLink(row.report, row.name)) : null,
    );
  }

  async #provider(id) {
    const answer = await find(`/v1/providers/${segment(id)}`);
    const events = () => this.#events((change) => String(change.provider) === id);
    // The entry of a restored service has the id of its provider, too.
    const gone = "This provider has left, or has not returned since the broker was restarted.";
    if (answer === null) return [h("p", { class: "lead" }, gone), events()];
    const { provider, loads, why } = answer;
    const label = shown(provider.label ?? "", LONG);
    if (label) this.heading.textContent = label;
    return [
      loads.some(Number.isFinite)
        ? [
            sparkline([...loads, provider.load], trendLabel(loads, provider.load)),
            h("p", { class: "lead" }, "Load in the last hour"),
          ]
        : null,
      h("dl", { class: "facts" }, this.#columns("broker providers", provider, ["label"])),
      h("h3", {}, `${plural(why.length, "service")}, ${asOf()}`),
      why
        .slice(0, INSTANCES)
        .map((entry) =>
          h(
            "section",
            { class: "entry", "aria-label": `Service ${shown(entry.service)}` },
            h("h4", {}, h("a", { href: serviceAddress(entry.service) }, shown(entry.service)), checkOf(entry)),
            h("dl", { class: "facts" }, whyFacts(entry, ["hostport", "protocol", "alive_by", "ends", "check"])),
          ),
        ),
      why.length > INSTANCES ? h("p", { class: "lead" }, `and ${count(why.length - INSTANCES)} more`) : null,
      this.app.actions.buttons("provider", { provider: provider.provider }, () => this.resync()),
      events(),
    ];
  }

  /** Return the facts of a row, as the view of that name describes its columns. */
  #columns(name, row, without) {
    const columns = this.app.views.find((view) => view.name === name)?.columns ?? [];
    return columns
      .filter((column) => !without.includes(column.name) && row[column.name] !== undefined)
      .map((column) => fact(title(column.name), factOf(row[column.name], column), column.help));
  }

  #events(concerns) {
    const events = this.app.changes.list.filter(concerns).slice(0, EVENTS);
    if (events.length === 0) return null;
    return [
      h("h3", {}, "Events"),
      h(
        "ol",
        { class: "rows" },
        events.map((change) =>
          h(
            "li",
            {},
            h(
              "span",
              {},
              shown(word(change)),
              change.kind === "load" ? ` ${count(change.load)}` : ` ${shown(subject(change))}`,
            ),
            h("span", { class: "aside" }, change.why === word(change) ? "" : shown(change.why ?? "")),
            h("span", { class: "aside" }, when(change.at)),
          ),
        ),
      ),
    ];
  }
}

/** The places of actions, by the tables whose rows have their buttons. */
const PLACES = { sessions: "session", connections: "session", queues: "queue", topics: "topic" };

const REASONS = ["alive_by", "ends", "check", "since", "heard", "broker", "wire", "provider", "label", "address", "protocol"];

function whyFacts(entry, names = REASONS) {
  return names.map((name) => {
    const value = entry[name];
    if (value === undefined || value === null || value === "") return null;
    if (name === "provider") return fact("Provider", providerLink(value));
    if (name === "since") return fact("Since", when(value));
    if (name === "heard") return fact("Heard", ago(value));
    return fact(title(name), whole(value));
  });
}

/** Return the mark of the check in an entry's sentence. */
function checkOf(entry) {
  return checkMark(/^(passing|doubtful|failing)\b/.exec(entry.check ?? "")?.[0]);
}

function whole(value, unit) {
  if (typeof value === "string") return shown(value, LONG);
  return format(value, unit);
}

function factOf(value, { name, unit }) {
  return name.endsWith("_at") ? when(value) : whole(value, unit);
}

function fact(name, value, help) {
  return h("div", {}, h("dt", { title: help }, name), h("dd", {}, value === "" || value === null ? "–" : value));
}

/** Return the time of an answer: ages and ends of leases are those of then, and no event announces a sign of life. */
function asOf() {
  return `as of ${time(new Date())}`;
}

function gone(error) {
  if (error.status === 404) return null;
  throw error;
}
