// Requests to the HTTP API, with the credentials of the user if there are some.

const KEY = "elkobroker.credentials";

/** Milliseconds that an answer may take. The broker answers in a few; a request that was lost would hold up its list. */
export const ANSWER = 20_000;

/** An error answer of the API (RFC 9457), or no answer at all: then `status` is 0. */
export class Problem extends Error {
  constructor(status, title, detail) {
    super(detail || title);
    this.status = status;
    this.title = title;
  }

  /** True if the same request may succeed later. */
  get passing() {
    return this.status === 0 || this.status === 429 || this.status >= 500;
  }
}

/** Events: "refused" when the API asks for a user (401). */
export const access = new EventTarget();

let credentials = null;
try {
  credentials = sessionStorage.getItem(KEY);
} catch {
  // storage is switched off: they last as long as the page
}

/** Return true if credentials are used. */
export function hasCredentials() {
  return credentials !== null;
}

/** Use the value of an Authorization header from now on; null for none. A password lasts as long as the page. */
export function useCredentials(given) {
  credentials = given;
  try {
    if (given === null || given.startsWith("Basic ")) sessionStorage.removeItem(KEY);
    else sessionStorage.setItem(KEY, given);
  } catch {
    // as above
  }
}

/** Return a path with a query; an array gives a parameter several times, null and "" leave it out. */
export function path(base, query = {}) {
  const parameters = new URLSearchParams();
  for (const [name, value] of Object.entries(query)) {
    for (const each of Array.isArray(value) ? value : [value]) {
      if (each !== null && each !== undefined && each !== "") parameters.append(name, each);
    }
  }
  const text = parameters.toString();
  return text ? `${base}?${text}` : base;
}

/** Return the URL of a path of the broker, which may be below a path of a proxy. The page is at the broker's root. */
export function here(where) {
  return new URL(`.${where}`, document.baseURI).href;
}

/** Return one segment of a path. */
export function segment(name) {
  return encodeURIComponent(String(name).toWellFormed());
}

/** Return the response to a GET, or another method. Throws a `Problem`, or an AbortError. */
export async function open(where, { signal, headers = {}, method = "GET", body } = {}) {
  const sent = credentials;
  let response;
  try {
    response = await fetch(here(where), {
      signal,
      method,
      body,
      headers: sent === null ? headers : { ...headers, Authorization: sent },
      credentials: "omit",
      // The browser asks with If-None-Match, and the broker answers 304 where nothing has changed.
      cache: "no-cache",
      redirect: "error",
    });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Problem(0, "No answer", "The broker does not answer.");
  }
  if (response.ok) return response;
  const problem = await problemOf(response);
  // A late refusal says nothing about the credentials that the user has entered since.
  if (problem.status === 401 && sent === credentials) access.dispatchEvent(new CustomEvent("refused", { detail: problem }));
  throw problem;
}

async function problemOf(response) {
  try {
    const { title, detail } = await response.json();
    return new Problem(response.status, String(title ?? ""), String(detail ?? ""));
  } catch {
    return new Problem(response.status, `Status ${response.status}`, response.statusText);
  }
}

/** Return the JSON answer to a GET, or to another method. Throws a `Problem`, also if it takes longer than `ANSWER`. */
export async function get(where, options) {
  const late = AbortSignal.timeout(ANSWER);
  const signal = options?.signal ? AbortSignal.any([options.signal, late]) : late;
  try {
    const headers = { ...options?.headers, Accept: "application/json" };
    const response = await open(where, { ...options, signal, headers });
    return await response.json();
  } catch (error) {
    if (error.name === "AbortError" || error instanceof Problem) throw error;
    throw new Problem(0, "Broken answer", "The broker's answer ended early.");
  }
}

/** Return the JSON answer to a POST or another method, with parameters if there are any. */
export function post(where, parameters, method = "POST") {
  if (parameters === undefined) return get(where, { method });
  const headers = { "Content-Type": "application/json" };
  return get(where, { method, headers, body: JSON.stringify(parameters) });
}

/** Return the answer to a GET, or null where the API has none (404). */
export async function find(where, options) {
  try {
    return await get(where, options);
  } catch (error) {
    if (error.status === 404) return null;
    throw error;
  }
}
