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

  /** The work was done otherwise: the pause begins now. */
  done() {
    this.#last = performance.now();
  }

  /** Cancel a pending call. */
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

/** Milliseconds of the pause for each row that the broker has to count, and to read: about 1,600 times the broker's own
 * time, so that a hundred pages take a few percent of it. */
const COUNTED = 0.8;
const READ = 6;
/** The shortest and the longest pause. */
const LEAST = 2_000;
const MOST = 900_000;

/** Return the pause between two questions for a list of so many rows; `read` if each row is read, not only counted: to
 * sort or to select. */
export function pauseFor(rows, read = false) {
  return Math.min(MOST, Math.max(LEAST, rows * (read ? READ : COUNTED)));
}
