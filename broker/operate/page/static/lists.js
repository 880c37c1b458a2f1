// The lists of the whole farm: how their columns are shown. Columns that are not named here follow as the views describe
// them, so that a new column needs no change of the page.

import { here } from "./api.js";
import { checkKind } from "./changes.js";
import { h } from "./dom.js";
import { reportLink } from "./report.js";
import { address, providerAddress } from "./route.js";
import { ago, count, format, shown, when } from "./text.js";

/** Return a mark for the state of a check, with a shape and a word, not only a colour. */
export function checkMark(check) {
  if (!check) return "";
  return h("span", { class: `mark ${checkKind(check)}` }, shown(check));
}

const VERDICTS = { overloaded: "bad", "no N+1": "bad", "below policy": "warn", "can free": "good", enough: "good" };

/** Return true if the plan says that providers are missing, as measured or by the policy. */
export function isShort(row) {
  return VERDICTS[row.verdict] === "bad" || VERDICTS[row.verdict] === "warn";
}

function daysText(days) {
  return days > 0 ? `in ${count(days)} d` : "now";
}

/** Return the mark of a service in the plan. */
export function verdictMark(row) {
  return h("span", { class: `mark ${VERDICTS[row.verdict] ?? "idle"}` }, shown(String(row.verdict)));
}

/** Return a link to the details of a provider; the broker itself has none. */
export function providerLink(id) {
  if (id === 0) return "broker";
  return id === null || id === undefined ? "" : h("a", { href: providerAddress(id) }, String(id));
}

/** Return a number of instances in a state, which a mark shows if it is a good or a bad one. */
function stateCount(state, number) {
  const kind = state === "untested" || state === "restored" ? "idle" : checkKind(state);
  return h("span", { class: `mark ${kind}`, title: state }, count(number));
}

const ready = (row) => h("span", { class: `mark ${row.ready ? "good" : "bad"}` }, row.ready ? "ready" : "not ready");

const load = { name: "load", title: "Load", number: true, role: "side", width: "minmax(5rem, 1fr)" };
const details = [
  { name: "requests", title: "Requests", number: true },
  { name: "errors", title: "Errors", number: true },
  { name: "in_flight", title: "In flight", number: true },
  { name: "latency_ms", title: "Latency", number: true },
];

/**
 * The lists by place:
 *  - `title`, `path` in the API, `view`: the name of the view that describes its columns, `search`: what a search finds;
 *  - `columns`: those that have a form of their own; `kinds`: the kinds of changes after which it is loaded again;
 *  - `long`: true if the broker sends a page of it without reading the other rows;
 *  - `filter`: true if the search field takes filters; `hidden`: columns that are not shown;
 *  - `history`: true if its rows have the loads of the last hour; `every`: seconds after which it is loaded again;
 *  - `key(row)`, `open(row)`: the parameter `open` of its details; `link(row)`: the address that a row leads to, in their
 *    place.
 */
export const LISTS = {
  catalog: {
    title: "Catalog",
    path: "/v1/catalog",
    view: "broker catalog",
    search: "Search names, or filter: zone=b",
    filter: true,
    empty: "No service is registered.",
    long: true,
    columns: [
      { name: "service", title: "Service", role: "main" },
      { name: "instances", title: "Instances", number: true, role: "side", width: "minmax(5.5rem, .8fr)" },
      ...["passing", "doubtful", "failing", "untested", "restored"].map((name) => ({
        name,
        title: title(name),
        number: true,
        width: "minmax(5.5rem, .8fr)",
        draw: (row) => (row[name] ? stateCount(name, row[name]) : ""),
      })),
      { name: "wires", title: "Wires", width: "minmax(5rem, 1fr)" },
      // Not at the side, as elsewhere: on a phone it would stand beside the number of instances.
      { ...load, role: undefined },
      { name: "requests", title: "Requests/s", number: true },
      { name: "errors", title: "Errors/s", number: true },
      {
        name: "verdict",
        title: "Plan",
        width: "minmax(6rem, 1fr)",
        draw: (row) => (row.verdict ? verdictMark(row) : ""),
      },
    ],
    hidden: ["protocols", "zones", "lowest", "highest"],
    kinds: ["offered", "withdrawn", "amended", "left", "checked"],
    // No change announces the loads, which are not watched here, and the end of restored instances.
    every: 60,
    key: (row) => row.service,
    link: (row) => address("services", { where: `service=${row.service}` }),
    mark: (row) => row.failing > 0 && "failing",
  },
  services: {
    title: "Services",
    path: "/v1/services",
    view: "broker services",
    search: 'Search services, or filter: "v2" in tags',
    filter: true,
    empty: `No service is registered. One line offers one:  curl -X PUT ${here("/v1/services/bank/1")} -d '{"hostport":"10.0.0.1:80","ttl":60}'`,
    sort: "service",
    long: true,
    columns: [
      { name: "service", title: "Service", role: "main" },
      { name: "protocol", title: "Protocol", width: "minmax(5.5rem, 1fr)" },
      { name: "hostport", title: "Address", mono: true },
      { name: "check", title: "Check", role: "side", width: "minmax(6rem, 1fr)", draw: (row) => checkMark(row.check) },
      { name: "reason", title: "Reason", width: "minmax(6rem, 2fr)" },
      {
        name: "provider",
        title: "Provider",
        number: true,
        draw: (row) => providerLink(row.provider),
        width: "minmax(5.5rem, 1fr)",
      },
      { name: "label", title: "Label" },
      { name: "zone", title: "Zone" },
      { name: "tags", title: "Tags", draw: (row) => shown((row.tags ?? []).join(", ")) },
      { name: "meta", title: "Meta", draw: (row) => shown(Object.entries(row.meta ?? {}).map((pair) => pair.join("=")).join(", ")) },
      { name: "secret", title: "Secret", width: "minmax(5rem, .7fr)", draw: (row) => (row.secret ? "secret" : "") },
    ],
    kinds: ["offered", "withdrawn", "amended", "left", "checked"],
    key: (row) => [row.service, row.protocol, row.hostport, row.provider].join("\n"),
    open: (row) => row.service,
    mark: (row) => row.check === "failing" && "failing",
  },
  providers: {
    title: "Providers",
    path: "/v1/providers",
    view: "broker providers",
    search: "Search labels, addresses, wires",
    empty: "No provider is connected.",
    columns: [
      { name: "provider", title: "Provider", number: true, width: "minmax(5rem, .8fr)" },
      {
        name: "label",
        title: "Label",
        role: "main",
        draw: (row) => shown(row.label ?? "") || `provider ${row.provider}`,
      },
      { name: "wire", title: "Wire", width: "minmax(4.5rem, .8fr)" },
      { name: "address", title: "Address", mono: true },
      { name: "services", title: "Services", number: true },
      load,
      { name: "trend", title: "Last hour", trend: true, fixed: true, width: "8.5rem" },
      {
        name: "heard",
        title: "Heard",
        number: true,
        width: "minmax(9.5rem, 1fr)",
        draw: (row) => (typeof row.heard === "number" ? ago(row.heard) : ""),
      },
    ],
    kinds: ["joined", "left", "relabelled", "offered", "withdrawn", "checked"],
    history: true,
    key: (row) => String(row.provider),
    open: (row) => row.provider,
  },
  loads: {
    title: "Loads",
    path: "/v1/loads",
    view: "broker loads",
    search: "Search labels",
    empty: "No provider has reported a load.",
    sort: "-load",
    columns: [
      {
        name: "label",
        title: "Label",
        role: "main",
        draw: (row) => shown(row.label ?? "") || `provider ${row.provider}`,
      },
      { name: "provider", title: "Provider", number: true, width: "minmax(5rem, .8fr)" },
      load,
      { name: "trend", title: "Last hour", trend: true, fixed: true, width: "minmax(8.5rem, 1.5fr)" },
      ...details,
    ],
    kinds: ["joined", "left", "relabelled", "load"],
    history: true,
    key: (row) => String(row.provider),
    open: (row) => row.provider,
  },
  plan: {
    title: "Capacity plan",
    path: "/v1/plan",
    view: "broker plan",
    search: "Search services",
    empty:
      "There is no capacity plan. The capacity jobs write plan.json, and the key plan.file of the configuration names it.",
    hidden: ["age"],
    columns: [
      { name: "name", title: "Service", role: "main" },
      { name: "verdict", title: "Verdict", role: "side", draw: verdictMark, width: "minmax(12.5rem, 1.5fr)" },
      {
        name: "days_until_short",
        title: "Short",
        number: true,
        draw: (row) => (typeof row.days_until_short === "number" ? daysText(row.days_until_short) : ""),
      },
      { name: "add", title: "To add", number: true },
      { name: "free", title: "May go", number: true },
      { name: "has", title: "Providers now", number: true, width: "minmax(7.5rem, 1fr)" },
      { name: "need_now", title: "Needed now", number: true, width: "minmax(7rem, 1fr)" },
      { name: "need", title: "Needed in the horizon", number: true, width: "minmax(11rem, 1fr)" },
      { name: "short_at", title: "Too few from", draw: (row) => when(row.short_at), width: "minmax(11.5rem, 1.5fr)" },
      { name: "note", title: "Note", width: "minmax(6rem, 2fr)" },
      { name: "report", title: "Report", fixed: true, width: "5rem", draw: (row) => reportLink(row.report, row.name) },
    ],
    kinds: [],
    every: 60,
    key: (row) => row.name,
    open: (row) => row.name,
  },
  listeners: {
    title: "Listeners",
    path: "/v1/listeners",
    view: "broker listeners",
    search: "Search listeners",
    empty: "No listener is configured.",
    columns: [
      { name: "name", title: "Listener", role: "main" },
      { name: "ready", title: "State", role: "side", draw: ready, width: "minmax(6rem, 1fr)" },
      { name: "where", title: "Address", mono: true },
      { name: "seconds", title: "Since", number: true },
      { name: "reason", title: "Reason", width: "minmax(10rem, 4fr)" },
    ],
    kinds: [],
    every: 5,
    key: (row) => String(row.name),
    mark: (row) => row.ready === false && "failing",
  },
  counters: {
    title: "Counters",
    path: "/v1/counters",
    view: "broker counters",
    search: "Search counters",
    empty: "No counter.",
    columns: [
      { name: "name", title: "Counter", role: "main", mono: true },
      { name: "value", title: "Value", number: true, role: "side" },
    ],
    kinds: [],
    every: 2,
    key: (row) => String(row.name ?? row.counter ?? Object.values(row)[0]),
  },
};

/** Return the columns of a list: its own, and those that its view has besides, if a row may have them. */
export function columnsOf(list, view) {
  const described = new Map((view?.columns ?? []).map((column) => [column.name, column]));
  const own = list.columns
    // A column of the view that this version of the broker lacks is left out; those that are drawn here always are.
    .filter((column) => view === undefined || described.has(column.name) || column.fixed || column.role === "main")
    .map((column) => ({ ...column, help: described.get(column.name)?.help, unit: described.get(column.name)?.unit }));
  const named = new Set([...(list.hidden ?? []), ...list.columns.map((column) => column.name)]);
  const others = [...described.values()].filter((column) => !named.has(column.name)).map((column) => plain(column));
  return [...own, ...others];
}

/** Return the column of a view as a column of a table. */
export function plain(column, position = -1) {
  const number = Boolean(column.unit);
  return {
    name: column.name,
    title: title(column.name),
    help: column.help,
    unit: column.unit,
    number,
    role: position === 0 ? "main" : null,
    width: column.unit === "seconds" ? "minmax(7.5rem, 1fr)" : undefined, // "59 min 59 s"
    draw: (row) => bare(row[column.name], column.unit),
  };
}

/** Return a value as text; one that says nothing without its title has an element, by which narrow.css knows it. */
function bare(value, unit) {
  const text = format(value, unit);
  return typeof value === "number" || typeof value === "boolean" ? h("span", { class: "bare" }, text) : text;
}

/** Return the name of a column or a table as a title: "days_until_short" is "Days until short". */
export function title(name) {
  const words = name.replaceAll("_", " ");
  return words.charAt(0).toUpperCase() + words.slice(1);
}
