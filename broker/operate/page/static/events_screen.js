// The changes of the registry as they happen.

import { markOf, subject, word } from "./changes.js";
import { h, say } from "./dom.js";
import { providerLink } from "./lists.js";
import { serviceAddress } from "./route.js";
import { Table } from "./table.js";
import { count, plural, shown, when } from "./text.js";

/** The screen. While its reader has scrolled down, new changes wait, so that nothing moves. */
export class EventsScreen {
  title = "Events";
  search = "Search events";

  get wantsLoads() {
    return this.loads;
  }

  constructor(app) {
    this.app = app;
    this.rows = [];
    this.typed = "";
    this.loads = false;
    this.newer = h("button", { type: "button", class: "chip", hidden: true, click: () => this.#top() });
    this.loadsBox = h("input", { type: "checkbox", id: "with-loads", change: () => this.#withLoads() });
    this.total = h("span", { class: "total" });
    this.table = new Table({
      label: "Events",
      columns: [
        {
          name: "at",
          title: "Time",
          width: "10rem",
          number: true,
          draw: (change) => when(change.at),
        },
        {
          name: "kind",
          title: "Change",
          width: "7.5rem",
          draw: (change) => h("span", { class: `mark ${markOf(change)}` }, shown(word(change))),
        },
        { name: "service", title: "Service or provider", role: "main", draw: (change) => shown(subject(change)) },
        { name: "hostport", title: "Address", mono: true },
        {
          name: "provider",
          title: "Provider",
          number: true,
          draw: (change) => providerLink(change.provider),
          width: "minmax(5rem, .7fr)",
        },
        { name: "load", title: "Load", number: true, width: "minmax(4rem, .7fr)" },
        {
          name: "why",
          title: "Reason",
          role: "side",
          width: "minmax(6rem, 1fr)",
          draw: (change) => (change.why === word(change) ? "" : shown(change.why ?? "")),
        },
        { name: "revision", title: "Revision", number: true },
      ],
      empty: () => (this.typed ? "Nothing matches." : "No change since this page was opened."),
      key: (change) => `${change.revision} ${change.kind} ${change.provider}`,
      target: (change) => (change.service ? serviceAddress(change.service) : null),
      load: ({ offset, limit }) => ({ rows: this.rows.slice(offset, offset + limit), total: this.rows.length }),
      counted: (total) => say(this.total, count(total)),
    });
    this.table.element.addEventListener("scroll", () => this.table.element.scrollTop === 0 && this.#filter(), {
      passive: true,
    });
    this.element = h(
      "section",
      { class: "screen list" },
      h(
        "div",
        { class: "bar" },
        h("h1", { tabindex: -1 }, "Events"),
        this.total,
        h("label", { class: "option", for: "with-loads" }, this.loadsBox, " Loads"),
        this.newer,
      ),
      this.table.element,
    );
  }

  show(parameters) {
    this.typed = (parameters.get("q") ?? "").toLowerCase();
    this.app.detail.hide();
    this.#filter();
  }

  changes() {
    if (this.table.element.scrollTop === 0) return this.#filter();
    const newest = this.rows[0];
    const waiting = this.#matching().findIndex((change) => change === newest);
    this.newer.hidden = waiting <= 0;
    say(this.newer, `${plural(waiting, "newer event")} ↑`);
  }

  refresh() {
    this.#filter();
  }

  resync() {
    this.#filter();
  }

  close() {
    this.table.close();
  }

  #matching() {
    return this.app.changes.list.filter((change) => (this.loads || change.kind !== "load") && this.#found(change));
  }

  #found(change) {
    if (!this.typed) return true;
    return [change.service, change.label, change.hostport, change.kind, change.provider].some((value) =>
      String(value ?? "")
        .toLowerCase()
        .includes(this.typed),
    );
  }

  #withLoads() {
    this.loads = this.loadsBox.checked;
    this.app.renew();
    this.#filter();
  }

  #filter() {
    this.newer.hidden = true;
    this.rows = this.#matching();
    this.table.refresh();
  }

  #top() {
    this.table.element.scrollTop = 0;
    this.#filter();
  }
}
