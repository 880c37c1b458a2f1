// The changes of the registry that this page has seen, the newest first.

/** Changes that are kept: what somebody scrolls through. */
const MOST = 2_000;
/** Seconds of the rate of changes that are kept. */
const SECONDS = 120;

/** The recent changes, as the API sends them: `at`, `kind`, `service`, `provider`, ... */
export class Changes {
  /** The newest first. */
  list = [];
  #seen = new Set();
  #seconds = new Map();

  /** Add changes in the order of their revisions, which arrived at that time. Returns those that are new. */
  add(changes, arrived = new Date()) {
    const news = [];
    for (const change of changes) {
      const key = `${change.revision} ${change.kind} ${change.provider}`;
      if (this.#seen.has(key)) continue;
      this.#seen.add(key);
      news.push(change);
    }
    this.list = [...news.toReversed(), ...this.list];
    for (const old of this.list.splice(MOST)) this.#seen.delete(`${old.revision} ${old.kind} ${old.provider}`);
    const second = Math.floor(arrived.getTime() / 1000);
    this.#seconds.set(second, (this.#seconds.get(second) ?? 0) + news.length);
    for (const old of this.#seconds.keys()) if (old < second - SECONDS) this.#seconds.delete(old);
    return news;
  }

  /** Return the changes in each of the last seconds, the oldest first. */
  rate(seconds = 60) {
    const now = Math.floor(Date.now() / 1000);
    return Array.from({ length: seconds }, (_, index) => this.#seconds.get(now - seconds + index) ?? 0);
  }
}

/** Return the word for a change: its kind, or how it came about. */
export function word(change) {
  if (change.kind === "checked") return String(change.why ?? "checked");
  if (change.kind === "withdrawn" && change.why) return String(change.why);
  return String(change.kind ?? "");
}

const CHECKS = { passing: "good", doubtful: "warn", failing: "bad" };

/** Return the kind of mark for the state of a check. */
export function checkKind(state) {
  return CHECKS[state] ?? "idle";
}

/** Return the kind of mark for a change. */
export function markOf({ kind, why }) {
  if (kind === "offered" || kind === "joined" || kind === "shown") return "good";
  if (kind === "withdrawn" || kind === "left" || kind === "hidden") return "bad";
  return checkKind(why);
}

/** Return the name of the changed service or provider. */
export function subject(change) {
  return change.service ?? change.label ?? (change.provider === undefined ? "" : `provider ${change.provider}`);
}
