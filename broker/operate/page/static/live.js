// The stream of changes: server-sent events over fetch, because an EventSource cannot send a token.

import { open, path } from "./api.js";
import { UPDATE } from "./pace.js";

/** Longest line that is kept: a change is a few hundred bytes. */
const LONGEST = 1_000_000;
/** Milliseconds before the first attempt to connect again; doubled for each, up to the most. */
const FIRST = 1_000;
const MOST = 15_000;
/** Milliseconds of silence after which the connection counts as lost: the broker sends a comment more often. */
const SILENCE = 60_000;
/** The kinds of changes besides reports of load. */
export const KINDS = ["joined", "left", "relabelled", "offered", "withdrawn", "amended", "checked", "hidden", "shown"];

/**
 * The stream. Events:
 *  - "state": `state` is "connecting", "live", "lost" or "paused", since `since`;
 *  - "changes", with a list of them, at most four times a second;
 *  - "resync": changes were missed.
 */
export class Live extends EventTarget {
  state = "connecting";
  since = new Date();
  /** Returns true if reports of load are wanted too: a busy farm has thousands in a second. */
  wants = () => true;
  #last = null;
  #loads = false;
  #pending = [];
  #missed = false;
  #flush = null;
  #ended = null;
  #timer = null;
  #delay = FIRST;

  /** Connect, unless it is connected already. */
  start() {
    if (this.#ended !== null) return;
    clearTimeout(this.#timer);
    this.#ended = new AbortController();
    this.#run(this.#ended);
  }

  /** Begin after the place of an answer of /v1/events, unless a later one is known. */
  follow({ epoch, revision }) {
    this.#last ??= `${epoch}-${revision}`;
  }

  /** Connect again if other changes are wanted than those that come. */
  renew() {
    if (this.#ended !== null && this.wants() !== this.#loads) this.restart();
  }

  /** Disconnect; the next start resumes. */
  pause() {
    this.#stop();
    this.#become("paused");
  }

  /** Connect again at once. */
  restart() {
    this.#stop();
    this.start();
  }

  #stop() {
    clearTimeout(this.#timer);
    this.#ended?.abort();
    this.#ended = null;
  }

  #become(state) {
    if (state !== this.state) {
      // The time is that of the loss, however often a new attempt fails.
      this.state = state;
      this.since = new Date();
    }
    this.dispatchEvent(new Event("state"));
  }

  async #run(ended) {
    if (this.state === "paused") this.#become("connecting");
    let watchdog;
    const alive = () => {
      clearTimeout(watchdog);
      watchdog = setTimeout(() => ended.abort(), SILENCE);
    };
    let denied = false;
    try {
      alive();
      const headers = { Accept: "text/event-stream" };
      if (this.#last !== null) headers["Last-Event-ID"] = this.#last;
      this.#loads = this.wants();
      const kinds = this.#loads ? [] : KINDS;
      const response = await open(path("/v1/watch", { kinds }), { signal: ended.signal, headers });
      this.#delay = FIRST;
      this.#become("live");
      const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
      await this.#read(reader, alive);
    } catch (error) {
      denied = error.status === 401;
    } finally {
      clearTimeout(watchdog);
    }
    if (this.#ended !== ended) return; // paused, or started again
    this.#ended = null;
    this.#become("lost");
    // A new token starts it again. A right that is missing (403) may be given later.
    if (denied) return;
    this.#timer = setTimeout(() => this.start(), this.#delay);
    this.#delay = Math.min(MOST, this.#delay * 2);
  }

  async #read(reader, alive) {
    let rest = "";
    let event = { name: "message", data: [], id: null };
    for (;;) {
      const { value, done } = await reader.read();
      if (done) return;
      alive();
      const lines = (rest + value).split(/\r\n|\n|\r(?!$)/);
      rest = lines.pop();
      if (rest.length > LONGEST) throw new Error("a line without end");
      for (const line of lines) {
        if (line === "") {
          this.#receive(event);
          event = { name: "message", data: [], id: null };
        } else if (line.startsWith("data:")) event.data.push(line.slice(5).replace(/^ /, ""));
        else if (line.startsWith("event:")) event.name = line.slice(6).trim();
        else if (line.startsWith("id:")) event.id = line.slice(3).trim();
      }
    }
  }

  #receive({ name, data, id }) {
    if (id !== null) this.#last = id;
    if (name === "resync") this.#missed = true;
    else if (data.length > 0) this.#take(data.join("\n"));
    if ((this.#missed || this.#pending.length > 0) && this.#flush === null) {
      this.#flush = setTimeout(() => this.#deliver(), UPDATE);
    }
  }

  #take(text) {
    let value;
    try {
      value = JSON.parse(text);
    } catch {
      return; // not for us
    }
    if (Array.isArray(value)) this.#pending.push(...value);
    else if (value !== null && typeof value === "object") this.#pending.push(value);
  }

  #deliver() {
    this.#flush = null;
    const changes = this.#pending;
    const missed = this.#missed;
    this.#pending = [];
    this.#missed = false;
    if (missed) this.dispatchEvent(new Event("resync"));
    if (changes.length > 0) this.dispatchEvent(new CustomEvent("changes", { detail: changes }));
  }
}
