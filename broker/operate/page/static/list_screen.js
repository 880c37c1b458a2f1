// A screen with one table: a list of the farm, or a view of a wire.

import { get, path } from "./api.js";
import { h, replace, say } from "./dom.js";
import { LISTS, columnsOf, plain } from "./lists.js";
import { Pace, pauseFor } from "./pace.js";
import { address, changed } from "./route.js";
import { sparkline } from "./spark.js";
import { Table } from "./table.js";
import { ago, count, shown, time } from "./text.js";

/** Seconds after which a view of a wire is loaded again: no change announces it. */
const EVERY = 3;

/** What the search field of a list of services takes for a filter (docs/protocols/http.md), not for a part of a name. */
const CONDITION = /=|\bin\s+tags\b/;

/** Services above which a list is not sorted by itself. */
const LONG = 5_000;
/** Milliseconds of a pause above which the page says when a list was loaded. */
const SLOW = 10_000;

/** Return the list of a place, or null: one of the farm, or one made from the description of a view. */
export function listOf(place, views) {
  if (Object.hasOwn(LISTS, place)) return LISTS[place];
  const [kind, wire, table] = place.split("/");
  const view = views.find((each) => each.name === `${wire} ${table}`);
  if (kind !== "view" || view === undefined) return null;
  return {
    title: view.title,
    note: view.help,
    path: view.path,
    view: view.name,
    search: `Search ${table}`,
    empty: "Nothing here now.",
    columns: view.columns.slice(0, 1).map((column) => plain(column, 0)),
    kinds: [],
    every: EVERY,
    key: (row) => JSON.stringify(view.columns.slice(0, 2).map((column) => row[column.name])),
  };
}

/** The screen of a list. `app` has the live stream, the views and the details panel. */
export class ListScreen {
  #histories = new Map();
  #trends = new Pace(
    () => this.#loadTrends(),
    () => 5_000,
  );

  constructor(app, place, list) {
    this.app = app;
    this.place = place;
    this.list = list;
    this.title = list.title;
    this.search = list.search;
    this.wantsLoads = Boolean(list.history);
    this.query = { where: [] };
    this.opened = null;
    this.heading = h("h1", { tabindex: -1 }, list.title);
    this.total = h("span", { class: "total" });
    this.about = h("p", { class: "about" }, list.note ?? "");
    this.filters = h("ul", { class: "chips", "aria-label": "Filters" });
    this.again = h("button", { type: "button", class: "chip again", hidden: true, click: () => this.refresh() });
    this.error = h("p", { class: "strip", role: "alert", hidden: true });
    this.element = h(
      "section",
      { class: "screen list" },
      h("div", { class: "bar" }, this.heading, this.total, this.filters, this.again),
      this.about,
      this.error,
    );
    const view = app.views.find((each) => each.name === list.view);
    const columns = columnsOf(list, view).map((column) =>
      column.trend ? { ...column, draw: (row) => this.#trend(row) } : column,
    );
    this.table = new Table({
      label: list.title,
      columns,
      empty: () => (this.#selects() ? "Nothing matches." : list.empty),
      sort: this.#order(),
      key: list.key,
      mark: (row) => [
        row.gone && "gone",
        list.mark?.(row),
        this.opened !== null && String(list.open(row)) === this.opened && "open",
      ],
      target: list.link ?? (list.open && ((row) => changed({ open: list.open(row) }))),
      open: list.open || list.link ? null : (row) => app.detail.row(list, columns, row),
      load: (page) => this.#load(page),
      sorted: (sort) => app.go(changed({ sort })),
      counted: (total) => this.#count(total),
      failed: (error) => this.#fail(error),
      drawn: () => this.#drawn(),
      pause: () => this.#pause(),
      loaded: () => this.#loaded(),
    });
    this.element.append(this.table.element);
    if (list.every) this.timer = setInterval(() => document.hidden || this.table.stale(), list.every * 1000);
  }

  /** Show the list as the parameters of the address say. */
  show(parameters) {
    const typed = parameters.get("q") ?? "";
    const filter = this.list.filter && CONDITION.test(typed) ? typed : null;
    const query = { search: filter ? null : typed.trim(), filter, where: parameters.getAll("where") };
    const sort = parameters.get("sort") ?? this.#order();
    const same = JSON.stringify([query, sort]) === JSON.stringify([this.query, this.table.sort]);
    this.query = query;
    this.#chips(query.where);
    if (!same || this.table.total === null) this.table.reset({ sort });
    const open = this.list.open ? parameters.get("open") : null;
    if (open !== this.opened) {
      this.opened = open;
      this.table.redraw();
    }
    if (open !== null) this.app.detail.show(this.place, open);
    else this.app.detail.hide();
  }

  /** Handle changes of the registry. */
  changes(changes) {
    const loads = new Map();
    let stale = false;
    for (const change of changes) {
      if (change.kind === "load") loads.set(change.provider, change.load);
      if (this.list.kinds.includes(change.kind)) stale = true;
    }
    if (stale) {
      this.#mend(changes.filter((change) => change.kind !== "load"));
      this.table.stale();
    }
    if (loads.size > 0 && this.list.history) {
      this.table.patch((row) => {
        if (!loads.has(row.provider) || row.load === loads.get(row.provider)) return false;
        row.load = loads.get(row.provider);
        return true;
      });
    }
  }

  /** Load again, now. */
  refresh() {
    this.table.refresh();
    if (this.list.history) this.#trends.ask();
  }

  /** Load again: changes were missed. */
  resync() {
    this.table.stale();
    if (this.list.history) this.#trends.ask();
  }

  close() {
    clearInterval(this.timer);
    this.#trends.stop();
    this.table.close();
  }

  /** Mark rows that have gone or changed, long before they are loaded again. */
  #mend(changes) {
    this.table.patch((row) => {
      // The last one counts: of a service that is offered anew, the end comes before.
      const found = changes.findLast((change) => change.provider === row.provider && concerns(change, row));
      if (found === undefined) return false;
      if (found.kind === "checked") row.check = found.why;
      else row.gone = found.kind !== "offered";
      return true;
    });
  }

  /** A long list comes in the order of the broker: sorting it is the reader's decision. */
  #order() {
    return this.#rows() > LONG && this.list.long ? null : (this.list.sort ?? null);
  }

  #rows() {
    return Math.max(this.table?.total ?? 0, this.app.registry[this.place] ?? 0);
  }

  #pause() {
    const read = !this.list.long || Boolean(this.table.sort || this.#selects());
    return pauseFor(this.#rows(), read);
  }

  /** Return true if the query selects some of the rows. */
  #selects() {
    const { search, filter, where } = this.query;
    return Boolean(search || filter || where.length > 0);
  }

  #loaded() {
    this.again.hidden = this.#pause() <= SLOW;
    const sign = h("span", { "aria-hidden": "true" }, " ↻");
    replace(this.again, `as of ${time(new Date())}`, h("span", { class: "unseen" }, ", load again"), sign);
  }

  async #load({ offset, limit, sort, signal }) {
    const answer = await get(path(this.list.path, { ...this.query, sort, offset, limit }), { signal });
    if (this.place === "plan") say(this.about, planText(answer));
    if (this.list.history) this.#trends.ask();
    return answer;
  }

  async #loadTrends() {
    const providers = this.table.visible().map((row) => row.provider);
    if (providers.length === 0) return;
    this.#histories = await histories(providers, this.#histories);
    this.table.redraw();
  }

  #drawn() {
    if (this.list.history && this.table.visible().some((row) => !this.#histories.has(row.provider))) this.#trends.ask();
  }

  #trend(row) {
    const loads = this.#histories.get(row.provider);
    return loads?.length ? sparkline([...loads, row.load], trendLabel(loads, row.load)) : "";
  }

  #count(total) {
    say(this.total, count(total));
    this.app.announce(`${this.list.title}: ${count(total)} rows`);
  }

  #chips(where) {
    replace(
      this.filters,
      where.map((filter) => {
        const others = where.filter((each) => each !== filter);
        const target = address(this.place, { ...Object.fromEntries(this.app.parameters()), open: null, where: others });
        return h(
          "li",
          {},
          h(
            "a",
            { href: target, "aria-label": `Remove filter ${shown(filter)}` },
            shown(filter),
            h("span", { "aria-hidden": "true" }, " ×"),
          ),
        );
      }),
    );
    this.filters.hidden = where.length === 0;
  }

  #fail(error) {
    this.error.hidden = error === null || error.status === 0;
    say(this.error, error === null ? "" : shown(error.message));
  }
}

/** Return the age of a plan, and why there is no later one. */
function planText({ age, problem }) {
  return [age === null ? "" : `Made ${ago(age)}.`, problem ? shown(problem) : ""].join(" ").trim();
}

/** Return true if a row has gone, come or changed by a change of its provider. */
function concerns({ kind, service, protocol, hostport }, row) {
  if (kind === "left") return true;
  if (kind !== "withdrawn" && kind !== "checked" && kind !== "offered") return false;
  return service === row.service && protocol === row.protocol && hostport === row.hostport;
}

/** Return the loads of the last hour of providers, by their ids; the known ones are kept where the API has no answer. */
export async function histories(providers, known = new Map()) {
  const found = new Map();
  try {
    const { rows } = await get(path("/v1/loads/history", { provider: providers.slice(0, 100) }));
    for (const row of rows) found.set(row.provider, row.loads);
  } catch {
    return known;
  }
  // A provider without a history is not asked for again and again.
  for (const provider of providers) if (!found.has(provider)) found.set(provider, known.get(provider) ?? []);
  return found;
}

/** Return the description of a sparkline. */
export function trendLabel(loads, now) {
  const numbers = loads.filter(Number.isFinite);
  if (numbers.length === 0) return `Load now ${count(now ?? 0)}`;
  return `Load in the last hour: from ${count(Math.min(...numbers))} to ${count(Math.max(...numbers))}, now ${count(now ?? numbers.at(-1))}`;
}
