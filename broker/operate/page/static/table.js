// A table of any length: the server sends and sorts pages, and only the rows in view are elements.

import { h, replace, say } from "./dom.js";
import { format, shown } from "./text.js";
import { Pace } from "./pace.js";

/** Rows of one request. */
const PAGE = 100;
/** Rows that are made beyond the visible ones. */
const SPARE = 6;
/** Pages that are kept; the farthest are forgotten. */
const KEPT = 20;
/** Milliseconds that scrolling must rest before pages are asked for. */
const REST = 80;

/** Widths of columns without one of their own; a number has to fit its title. */
const WIDTHS = {
  main: "minmax(9rem, 3fr)",
  mono: "minmax(10rem, 2fr)",
  number: "minmax(5.5rem, 1fr)",
  text: "minmax(6.5rem, 2fr)",
};

const narrow = matchMedia("(max-width: 700px)");

/**
 * The table. Options:
 *  - `label`: its name for screen readers; `empty()`: the text shown without rows;
 *  - `columns`: `{name, title, help, unit, role, number, width, draw(row)}`. `role` is "main" for the name of a row,
 *    "side" for the value beside it on a narrow screen. `draw` returns a node or a text instead of the plain value;
 *  - `load({offset, limit, sort, signal})`: returns `{rows, total}`, or a promise of it;
 *  - `key(row)`: identifies a row; `target(row)`: the address of its details; `open(row)`: opens details without one;
 *  - `sort`: the column and its direction, "-load"; `sorted(sort)`: called when the user sorts; null: fixed order;
 *  - `pause()`: the least time between two loads of the same rows, in milliseconds;
 *  - `loaded()`: called when rows were loaded; `counted(total)`: called with the number of rows, null if it is not known; `failed(error)`: an error, or null.
 */
export class Table {
  total = null;
  #pages = new Map();
  #loading = new Map();
  #shown = new Map();
  #cursor = -1;
  #generation = 0;
  #frame = null;
  #rest = null;
  #height = 30;
  #focus = false;
  #empty = new Set();

  constructor(options) {
    Object.assign(this, options);
    this.body = h("tbody", { role: "rowgroup" });
    this.head = h(
      "tr",
      { role: "row", "aria-rowindex": 1 },
      this.columns.map((column) => this.#heading(column)),
    );
    this.table = h(
      "table",
      { role: "table", "aria-label": this.label },
      h("thead", { role: "rowgroup" }, this.head),
      this.body,
    );
    this.note = h("p", { class: "empty", hidden: true });
    this.element = h(
      "div",
      { class: "scroll", tabindex: 0, role: "region", "aria-label": this.label },
      this.table,
      this.note,
    );
    this.#lay();
    this.element.addEventListener("scroll", () => this.#draw(), { passive: true });
    this.resizing = new ResizeObserver(() => this.#draw());
    this.resizing.observe(this.element);
    this.pace = new Pace(
      () => this.refresh(),
      () => this.pause?.() ?? 0,
    );
    narrow.addEventListener("change", this.#measure);
    this.#markSort();
    this.#measure();
  }

  /** Stop all work. */
  close() {
    narrow.removeEventListener("change", this.#measure);
    this.resizing.disconnect();
    this.pace.stop();
    clearTimeout(this.#rest);
    cancelAnimationFrame(this.#frame);
    this.#forget();
  }

  /** Load everything from the start: other rows are asked for. */
  reset({ sort = this.sort, keep = false } = {}) {
    this.sort = sort;
    this.#markSort();
    // The addresses of details have the parameters of the present list, also before its rows are there.
    this.redraw();
    this.#forget();
    this.#pages.clear();
    if (!keep) {
      this.#cursor = -1;
      this.element.scrollTop = 0;
    }
    this.#request();
  }

  /** The rows may have changed: load those in view again, at the pace that the length of the list permits. */
  stale() {
    this.pace.ask();
  }

  /** Load the rows in view again. */
  async refresh() {
    this.#forget();
    const [first, last] = this.#window();
    const from = Math.floor(first / PAGE);
    const to = Math.floor(Math.max(first, last - 1) / PAGE);
    const pages = [];
    for (let page = from; page <= to; page += 1) pages.push(page);
    this.#pages = new Map([...this.#pages].filter(([page]) => pages.includes(page)));
    await Promise.all(pages.map((page) => this.#fetch(page)));
  }

  /** Change loaded rows: `change(row)` returns true if it changed the row. */
  patch(change) {
    for (const [page, rows] of this.#pages) {
      rows.forEach((row, index) => {
        const element = this.#shown.get(page * PAGE + index);
        if (change(row) && element) this.#write(element, row, true);
      });
    }
  }

  /** Draw a column of all visible rows once more. */
  redraw() {
    for (const [index, element] of this.#shown) {
      const row = this.#row(index);
      if (row) this.#write(element, row, true);
    }
  }

  /** The rows that are visible. */
  visible() {
    return [...this.#shown.keys()].map((index) => this.#row(index)).filter(Boolean);
  }

  /** Move the cursor by a number of rows, or to the first or last one. */
  move(by) {
    if (!this.total) return;
    const to = by === Infinity ? this.total - 1 : this.#cursor < 0 ? 0 : this.#cursor + by;
    this.#cursor = Math.min(this.total - 1, Math.max(0, to));
    const head = narrow.matches ? 0 : this.#height;
    const top = this.#cursor * this.#height;
    const view = this.element.clientHeight - head;
    if (top < this.element.scrollTop) this.element.scrollTop = top;
    else if (top + this.#height > this.element.scrollTop + view) this.element.scrollTop = top + this.#height - view;
    this.#focus = true;
    this.#paint();
  }

  /** Open the row at the cursor. Returns false without one. */
  activate() {
    const link = this.#shown.get(this.#cursor)?.querySelector("a, button");
    link?.click();
    return Boolean(link);
  }

  #heading(column) {
    const name = column.title ?? column.name;
    const attributes = { role: "columnheader", scope: "col", class: this.#classes(column), title: column.help };
    if (!this.sorted || column.fixed) return h("th", attributes, h("span", {}, name));
    const click = () => {
      const [sorting, down] = [this.sort?.replace(/^-/, ""), this.sort?.startsWith("-")];
      // Numbers begin with the largest.
      const first = column.number ? `-${column.name}` : column.name;
      const other = down ? column.name : `-${column.name}`;
      this.sorted(sorting === column.name ? other : first);
    };
    return h(
      "th",
      attributes,
      h("button", { type: "button", click }, name, h("span", { class: "arrow", "aria-hidden": "true" })),
    );
  }

  #classes(column) {
    return [column.role, column.number && "number", column.mono && "mono"].filter(Boolean).join(" ") || null;
  }

  #markSort() {
    const sorting = this.sort?.replace(/^-/, "");
    this.columns.forEach((column, index) => {
      const cell = this.head.children[index];
      if (column.name !== sorting) cell.removeAttribute("aria-sort");
      else cell.setAttribute("aria-sort", this.sort.startsWith("-") ? "descending" : "ascending");
    });
  }

  /** Lay out the columns that have a value in a loaded row; all of them without rows. */
  #lay() {
    this.columns.forEach((column, index) => {
      this.head.children[index].hidden = this.#empty.has(column);
      for (const element of this.#shown.values()) element.children[index].hidden = this.#empty.has(column);
    });
    const shown = this.columns.filter((column) => !this.#empty.has(column));
    const widths = shown.map(
      (column) =>
        column.width ??
        WIDTHS[column.mono ? "mono" : column.role === "main" ? "main" : column.number ? "number" : "text"],
    );
    this.table.style.setProperty("--columns", widths.join(" "));
    this.table.style.setProperty("--least", `${shown.length * 6.5}rem`);
  }

  /** Find the columns without a value in any loaded row, and hide them. One that sorts stays. */
  #sift() {
    const rows = [...this.#pages.values()].flat();
    const sorting = this.sort?.replace(/^-/, "");
    const stays = (column) => column.role === "main" || column.fixed || column.name === sorting;
    const valued = (column) => rows.some((row) => !isEmpty(column.draw ? column.draw(row) : row[column.name]));
    const empty = rows.length === 0 ? [] : this.columns.filter((column) => !stays(column) && !valued(column));
    if (empty.length === this.#empty.size && empty.every((column) => this.#empty.has(column))) return;
    this.#empty = new Set(empty);
    this.#lay();
  }

  #measure = () => {
    this.#height = narrow.matches ? 60 : 30;
    this.table.style.setProperty("--row", `${this.#height}px`);
    for (const element of this.#shown.values()) element.remove();
    this.#shown.clear();
    this.#draw();
  };

  #forget() {
    this.#generation += 1;
    for (const controller of this.#loading.values()) controller.abort();
    this.#loading.clear();
  }

  #window() {
    const top = this.element.scrollTop;
    const height = this.element.clientHeight || 600;
    const first = Math.max(0, Math.floor(top / this.#height) - SPARE);
    const last = Math.ceil((top + height) / this.#height) + SPARE;
    return [first, this.total === null ? last : Math.min(this.total, last)];
  }

  #row(index) {
    return this.#pages.get(Math.floor(index / PAGE))?.[index % PAGE];
  }

  #draw() {
    if (this.#frame !== null) return;
    this.#frame = requestAnimationFrame(() => {
      this.#frame = null;
      this.#paint();
    });
  }

  #paint() {
    const [first, last] = this.#window();
    const length = this.total ?? 0;
    this.body.style.height = `${length * this.#height}px`;
    this.table.setAttribute("aria-rowcount", this.total === null ? -1 : length + 1);
    const active = document.activeElement;
    for (const [index, element] of this.#shown) {
      if (index < first || index >= last) {
        if (element.contains(active)) this.element.focus({ preventScroll: true });
        element.remove();
        this.#shown.delete(index);
      }
    }
    let before = this.body.firstElementChild;
    let missing = false;
    for (let index = first; index < Math.min(last, length); index += 1) {
      let element = this.#shown.get(index);
      if (element === undefined) {
        element = this.#make(index);
        this.body.insertBefore(element, before);
        this.#shown.set(index, element);
      } else before = element.nextElementSibling;
      const row = this.#row(index);
      if (row) this.#write(element, row);
      else {
        missing = true;
        this.#blank(element);
      }
      element.classList.toggle("cursor", index === this.#cursor);
      if (this.#focus && index === this.#cursor && row) {
        this.#focus = false;
        (element.querySelector("a, button") ?? element).focus({ preventScroll: true });
      }
    }
    if (missing || this.total === null) {
      clearTimeout(this.#rest);
      this.#rest = setTimeout(() => this.#request(), REST);
    }
    this.drawn?.();
  }

  #make(index) {
    const element = h(
      "tr",
      { role: "row", "aria-rowindex": index + 2 },
      this.columns.map((column) =>
        h("td", {
          role: "cell",
          class: this.#classes(column),
          "data-label": column.title ?? column.name,
          hidden: this.#empty.has(column),
        }),
      ),
    );
    element.style.top = `${index * this.#height}px`;
    element.addEventListener("focusin", () => this.#point(index));
    element.addEventListener("click", (event) => {
      this.#point(index);
      if (event.target.closest("a, button") === null && String(getSelection()) === "")
        element.querySelector("a, button")?.click();
    });
    return element;
  }

  #point(index) {
    this.#shown.get(this.#cursor)?.classList.remove("cursor");
    this.#cursor = index;
    this.#shown.get(index)?.classList.add("cursor");
  }

  #blank(element) {
    if (element.dataset.key === undefined && element.firstElementChild.textContent) return;
    delete element.dataset.key;
    element.source = undefined;
    element.texts = undefined;
    for (const cell of element.children) replace(cell);
    say(element.firstElementChild, "…");
  }

  #write(element, row, force = false) {
    const key = this.key(row);
    const same = element.dataset.key === key;
    if (same && element.source === row && !force) return;
    element.source = row;
    element.dataset.key = key;
    const cursor = element.classList.contains("cursor") && "cursor";
    element.className = [this.mark?.(row), cursor].flat().filter(Boolean).join(" ");
    const texts = element.texts ?? [];
    element.texts = this.columns.map((column, position) => {
      const cell = element.children[position];
      const drawn = column.draw ? column.draw(row) : format(row[column.name], column.unit);
      const text = drawn instanceof Node ? null : String(drawn ?? "");
      if (column.role === "main") {
        // The address of its details has the parameters of the list, which change while the row stays.
        this.#writeMain(cell, row, drawn);
      } else if (text === null) replace(cell, drawn);
      else if (texts[position] !== text || !same) {
        replace(cell, text);
        cell.title = text.length > 20 ? text : "";
        if (same && texts.length > 0) this.#flash(cell);
      }
      return text;
    });
  }

  #writeMain(cell, row, drawn) {
    const text = drawn instanceof Node ? drawn : drawn || "(no name)";
    const target = this.target?.(row);
    const old = cell.firstElementChild;
    if (old?.tagName === "A" && target) {
      // The element stays, and the focus with it.
      if (text instanceof Node || old.textContent !== text) replace(old, text);
      if (old.getAttribute("href") !== target) old.setAttribute("href", target);
    } else if (target) replace(cell, h("a", { href: target }, text));
    else if (this.open && old?.tagName === "BUTTON") {
      if (text instanceof Node || old.textContent !== text) replace(old, text);
    } else if (this.open)
      replace(cell, h("button", { type: "button", class: "link", click: () => this.open(this.#rowOf(cell)) }, text));
    else replace(cell, text);
    cell.title = typeof text === "string" && text.length > 20 ? text : "";
  }

  #rowOf(cell) {
    return cell.closest("tr").source;
  }

  #flash(cell) {
    cell.classList.remove("flash");
    requestAnimationFrame(() => cell.classList.add("flash"));
  }

  #request() {
    const [first, last] = this.#window();
    const from = Math.floor(first / PAGE);
    const to = Math.floor(Math.max(first, last - 1) / PAGE);
    for (const [page, controller] of this.#loading) {
      if (page < from || page > to) {
        controller.abort();
        this.#loading.delete(page);
      }
    }
    for (let page = from; page <= to; page += 1) {
      if (!this.#pages.has(page) && !this.#loading.has(page)) this.#fetch(page);
    }
  }

  async #fetch(page) {
    const controller = new AbortController();
    const generation = this.#generation;
    this.#loading.set(page, controller);
    try {
      const { rows, total } = await this.load({
        offset: page * PAGE,
        limit: PAGE,
        sort: this.sort,
        signal: controller.signal,
      });
      if (generation !== this.#generation) return;
      this.#take(page, rows, total);
    } catch (error) {
      if (error.name === "AbortError" || generation !== this.#generation) return;
      this.failed?.(error);
      if (this.total === null) this.#say(`Not loaded: ${shown(error.message)}`);
      if (error.passing) this.stale();
    } finally {
      if (this.#loading.get(page) === controller) this.#loading.delete(page);
    }
  }

  #take(page, rows, total) {
    this.#pages.set(page, rows);
    if (this.#pages.size > KEPT) {
      const far = [...this.#pages.keys()].sort((one, other) => Math.abs(other - page) - Math.abs(one - page));
      this.#pages.delete(far[0]);
    }
    const changed = total !== this.total;
    this.total = total;
    this.failed?.(null);
    this.#sift();
    this.pace.done();
    this.loaded?.();
    this.#say(total === 0 ? this.empty() : "");
    this.#follow();
    this.#paint();
    if (changed) this.counted?.(total);
  }

  /** Keep the focus on the row that has it, when rows before it come or go. */
  #follow() {
    const element = this.#shown.get(this.#cursor);
    if (element === undefined || !element.contains(document.activeElement)) return;
    const key = element.dataset.key;
    for (const index of this.#shown.keys()) {
      const row = this.#row(index);
      if (row && this.key(row) === key && index !== this.#cursor) {
        this.#point(index);
        this.#focus = true;
        return;
      }
    }
  }

  #say(text) {
    this.note.textContent = text;
    this.note.hidden = text === "";
  }
}

/** Return true if a value says nothing. */
function isEmpty(value) {
  if (value === null || value === undefined || value === "") return true;
  return typeof value === "object" && !(value instanceof Node) && Object.keys(value).length === 0;
}
