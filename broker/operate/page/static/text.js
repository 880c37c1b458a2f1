// Values as text: numbers with their units, times, and names that peers chose.

/** Characters of a text that a cell shows: more than fits, and little enough to lay out at once. */
const MOST = 300;

const UNSEEN = /[\p{Cc}\p{Cf}\p{Cs}\p{Co}\p{Zl}\p{Zp}]/gu;
const numbers = new Intl.NumberFormat("en", { maximumSignificantDigits: 4 });
const wholes = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });
const clock = new Intl.DateTimeFormat("en-GB", { hour: "2-digit", minute: "2-digit", second: "2-digit" });

/** Return a text with its invisible characters made visible: control characters, marks of direction, lone surrogates. */
export function shown(text, most = MOST) {
  const cut = text.length > most ? `${text.slice(0, most)}…` : text;
  // A name of blanks only would be a row without a name.
  const visible = cut.trim() === "" ? cut.replaceAll(" ", "␣") : cut;
  return visible.replace(
    UNSEEN,
    (character) => `‹${character.codePointAt(0).toString(16).toUpperCase().padStart(4, "0")}›`,
  );
}

/** Return a number for people. */
export function count(number) {
  return Number.isInteger(number) ? wholes.format(number) : numbers.format(number);
}

/** Return "1 service", "2 services". */
export function plural(number, noun) {
  return `${count(number)} ${noun}${number === 1 ? "" : "s"}`;
}

/** Return a length of time, given in seconds, in its two largest units. */
export function duration(seconds) {
  if (!Number.isFinite(seconds)) return "";
  if (seconds < 0) return `−${duration(-seconds)}`;
  // Each limit is where the number of the smaller unit would be rounded to one of the larger.
  if (seconds < 0.9995) return `${Math.round(seconds * 1000)} ms`;
  if (seconds < 9.95) return `${numbers.format(Math.round(seconds * 10) / 10)} s`;
  if (seconds < 59.5) return `${Math.round(seconds)} s`;
  if (seconds < 3599.5) return pair(Math.round(seconds), 60, "min", "s");
  if (seconds < 86370) return pair(Math.round(seconds / 60), 60, "h", "min");
  return pair(Math.round(seconds / 3600), 24, "d", "h");
}

function pair(value, size, large, small) {
  const rest = value % size;
  return `${Math.floor(value / size)} ${large}${rest ? ` ${rest} ${small}` : ""}`;
}

/** Return how long ago something was, given in seconds. */
export function ago(seconds) {
  return seconds < 1 ? "now" : `${duration(seconds)} ago`;
}

/** Return a size in bytes. */
export function bytes(size) {
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let unit = 0;
  while (size >= 1023.5 && unit < units.length - 1) {
    size /= 1024;
    unit += 1;
  }
  return `${numbers.format(size)} ${units[unit]}`;
}

/** Return the local time of day of a Date. */
export function time(date) {
  return clock.format(date);
}

/** Return a Date of a time of the API (RFC 3339, or seconds of the epoch), or null. */
export function moment(value) {
  const date = typeof value === "number" ? new Date(value * 1000) : typeof value === "string" ? new Date(value) : null;
  return date === null || Number.isNaN(date.getTime()) ? null : date;
}

/** Return "14:03:22" for a time of today, with the date otherwise; and the text itself if it is no time. */
export function when(value) {
  const date = moment(value);
  if (date === null) return value === null || value === undefined ? "" : shown(String(value));
  const day = date.toDateString() === new Date().toDateString() ? "" : `${date.toLocaleDateString("en-CA")} `;
  return day + time(date);
}

/** Return a value of a column as text. */
export function format(value, unit = "") {
  if (value === null || value === undefined) return "";
  if (value === true) return "yes";
  if (value === false) return "no";
  if (typeof value === "number") {
    if (unit === "seconds") return duration(value);
    if (unit === "milliseconds") return value === 0 ? "0" : duration(value / 1000);
    if (unit === "bytes") return bytes(value);
    return unit === "id" ? String(value) : count(value);
  }
  if (Array.isArray(value)) return shown(value.map((each) => format(each)).join(", "));
  if (typeof value === "object") return shown(JSON.stringify(value));
  return shown(String(value));
}
