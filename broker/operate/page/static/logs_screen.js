// The log that the broker collects from its nodes: messages of the topics log.NODE.

import { get, path } from "./api.js";
import { h, say } from "./dom.js";
import { FeedScreen } from "./feed_screen.js";
import { changed } from "./route.js";
import { plural, shown, when } from "./text.js";

/** Records that are kept, and those of one request. */
const MOST = 2_000;
const PAGE = 500;
/** Milliseconds between two requests of new records. */
const EVERY = 2_000;
/** The levels, with their marks. */
const LEVELS = { debug: "idle", info: "idle", warning: "warn", error: "bad", critical: "bad" };

/** The screen. */
export class LogsScreen extends FeedScreen {
  search = "Search logs";
  wantsLoads = false;
  #records = [];
  #last = 0;
  #missed = 0;
  #level = "debug";
  #turn = 0;

  constructor(app) {
    const levels = h(
      "select",
      { id: "level", change: () => app.go(changed({ level: levels.value === "debug" ? null : levels.value })) },
      Object.keys(LEVELS).map((level) => h("option", {}, level)),
    );
    const columns = [
      { name: "time", title: "Time", width: "10rem", number: true, draw: (record) => when(record.time) },
      {
        name: "level",
        title: "Level",
        role: "side",
        width: "6.5rem",
        draw: (record) => h("span", { class: `mark ${LEVELS[record.level] ?? "idle"}` }, shown(record.level)),
      },
      { name: "node", title: "Node", width: "minmax(7rem, 1fr)" },
      { name: "text", title: "Text", role: "main", width: "minmax(12rem, 6fr)", draw: (record) => shown(record.text) },
      { name: "wire", title: "Wire", width: "5rem" },
      { name: "fields", title: "Fields", width: "minmax(6rem, 2fr)" },
    ];
    const table = {
      columns,
      empty: () =>
        this.typed || this.#level !== "debug"
          ? "Nothing matches."
          : "No record. With collect = true in its section [log], the broker collects messages of the topics log.NODE.",
      key: (record) => String(record.id),
      open: (record) => app.detail.row({ title: "Record" }, columns, record),
    };
    super(app, "Logs", {
      noun: "record",
      table,
      controls: h("label", { class: "option", for: "level" }, "From level ", levels),
    });
    this.levels = levels;
    this.timer = setInterval(() => document.hidden || this.#load(), EVERY);
  }

  show(parameters) {
    const level = Object.hasOwn(LEVELS, parameters.get("level")) ? parameters.get("level") : "debug";
    if (level !== this.#level || this.#turn === 0) {
      this.#level = this.levels.value = level;
      this.#begin();
    }
    super.show(parameters);
  }

  all() {
    return this.#records;
  }

  texts({ node, text, wire, fields }) {
    return [node, text, wire, fields && JSON.stringify(fields)];
  }

  refresh() {
    this.#load();
  }

  close() {
    clearInterval(this.timer);
    this.#turn += 1;
    super.close();
  }

  #begin() {
    this.#turn += 1;
    this.#records = [];
    this.#last = 0;
    this.#missed = 0;
    this.#load();
  }

  async #load() {
    const turn = this.#turn;
    const after = this.#last;
    try {
      const query = { level: this.#level, after: after || null, limit: PAGE };
      const { last, missed, records } = await get(path("/v1/logs", query));
      // What another answer has brought meanwhile would count as missed twice.
      if (turn !== this.#turn || after !== this.#last) return;
      // The broker was started again, and its clock had been set back: the ids of its records are from the time.
      if (last < this.#last) return this.#begin();
      const known = this.#records[0]?.id ?? 0;
      const news = records.filter((record) => record.id > known);
      this.#records = [...news.toReversed(), ...this.#records].slice(0, MOST);
      this.#last = last;
      // They are missing among the records shown from now on.
      this.#missed += missed;
      this.#problem(
        this.#missed > 0 ? `${plural(this.#missed, "record")} left out: the file of the broker has them.` : "",
      );
      if (news.length > 0 || this.table.total === null) this.came();
    } catch (error) {
      if (turn === this.#turn && error.status !== 0) this.#problem(shown(error.message));
    }
  }

  #problem(text) {
    this.problem.hidden = text === "";
    say(this.problem, text);
  }
}
