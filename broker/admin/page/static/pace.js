// Rates: of the page's updates, and of its questions to the broker.

/** Milliseconds between two updates of the page: at most four a second. */
export const UPDATE = 250;

/** Calls a function soon after a calm time, and with a pause in between while there is more to do. */
export class Pace {
  #timer = null;
  #last = -Infinity;
  #running = false;
  #again = false;

  /** `pause` returns the least time between two calls, in milliseconds. */
  constructor(work, pause) {
    this.work = work;
    this.pause = pause;
  }

  /** Call the function, now or after the pause. */
  ask() {
    if (this.#running) this.#again = true;
    else if (this.#timer === null) this.#timer = setTimeout(() => this.#run(), Math.max(UPDATE, this.#rest()));
  }

  /** Forget what was asked for. */
  stop() {
    clearTimeout(this.#timer);
    this.#timer = null;
    this.#again = false;
  }

  #rest() {
    // Pages that were opened together do not ask together.
    return this.#last + this.pause() * (1 + Math.random() / 4) - performance.now();
  }

  async #run() {
    this.#timer = null;
    this.#running = true;
    try {
      await this.work();
    } finally {
      this.#running = false;
      this.#last = performance.now();
      if (this.#again) {
        this.#again = false;
        this.ask();
      }
    }
  }
}

/** Return the pause between two questions for a list of so many rows: a long list costs the broker more. */
export function pauseFor(rows) {
  return Math.min(20_000, Math.max(2_000, rows / 5));
}
