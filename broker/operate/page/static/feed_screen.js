// Screens of what happens, the newest first.

import { h, say } from "./dom.js";
import { Table } from "./table.js";
import { count, plural } from "./text.js";

/** A screen whose rows come by themselves. While its reader has scrolled down, new rows wait, so that nothing moves. */
export class FeedScreen {
  rows = [];
  typed = "";

  /** `options`: `noun` of a row, `table`: options of the `Table`, `controls`: elements of the bar. A subclass has
   * `title`, `all()`: all rows, the newest first, and `texts(row)`: what the search looks at. */
  constructor(app, title, { noun, table, controls }) {
    this.app = app;
    this.title = title;
    this.noun = noun;
    this.newer = h("button", { type: "button", class: "chip", hidden: true, click: () => this.#top() });
    this.total = h("span", { class: "total" });
    this.problem = h("p", { class: "strip", role: "alert", hidden: true });
    this.table = new Table({
      label: title,
      load: ({ offset, limit }) => ({ rows: this.rows.slice(offset, offset + limit), total: this.rows.length }),
      counted: (total) => say(this.total, count(total)),
      ...table,
    });
    this.table.element.addEventListener("scroll", () => this.table.element.scrollTop === 0 && this.filter(), {
      passive: true,
    });
    this.element = h(
      "section",
      { class: "screen list" },
      h("div", { class: "bar" }, h("h1", { tabindex: -1 }, title), this.total, controls, this.newer),
      this.problem,
      this.table.element,
    );
  }

  show(parameters) {
    this.typed = (parameters.get("q") ?? "").toLowerCase();
    this.app.detail.hide();
    this.filter();
  }

  /** Show new rows, or offer them. */
  came() {
    if (this.table.element.scrollTop === 0) return this.filter();
    const newest = this.rows[0];
    const waiting = this.#matching().findIndex((row) => row === newest);
    this.newer.hidden = waiting <= 0;
    say(this.newer, `${plural(waiting, `newer ${this.noun}`)} ↑`);
  }

  changes() {}

  refresh() {
    this.filter();
  }

  resync() {
    this.refresh();
  }

  close() {
    this.table.close();
  }

  /** Show all rows that match. */
  filter() {
    this.newer.hidden = true;
    this.rows = this.#matching();
    this.table.refresh();
  }

  #matching() {
    const found = (row) => this.texts(row).some((text) => String(text ?? "").toLowerCase().includes(this.typed));
    return this.typed ? this.all().filter(found) : this.all();
  }

  #top() {
    this.table.element.scrollTop = 0;
    this.filter();
  }
}
