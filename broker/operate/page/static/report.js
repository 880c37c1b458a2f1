// Links to the report of the capacity jobs, which opens in a tab of its own.
//
// The browser sends no token with a link. With one, the link leads to a path that serves the report for a while: a
// ticket, which the page asks for with the token (docs/page.md).

import { hasCredentials, here, post } from "./api.js";
import { h } from "./dom.js";
import { shown } from "./text.js";

const ROOT = "/plan/";
const PAGE = /^\/plan\/(report|services\/[A-Za-z0-9_-][A-Za-z0-9._-]*)\.html(#[A-Za-z0-9_-]+)?$/;

/** Return a link to a report, or "" if it is not one of this server. `name` is that of the service it is about. */
export function reportLink(report, name) {
  if (typeof report !== "string" || !PAGE.test(report)) return "";
  const label = name ? `Report on ${shown(name)}` : null;
  return h(
    "a",
    { href: here(report), target: "_blank", rel: "noreferrer", "aria-label": label, click: (event) => follow(event, report) },
    "report",
  );
}

async function follow(event, report) {
  if (!hasCredentials()) return;
  event.preventDefault();
  // Now, in the click: after the answer, the browser would take it for an unwanted window.
  const tab = open("about:blank", "_blank");
  if (tab === null) return;
  try {
    const { root } = await post("/v1/plan/tickets");
    tab.location.replace(here(root + report.slice(ROOT.length)));
  } catch (error) {
    if (error.status === 401) tab.close();
    else tab.document.body.textContent = shown(error.message);
  }
}
