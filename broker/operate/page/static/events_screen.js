// The changes of the registry as they happen.

import { markOf, subject, word } from "./changes.js";
import { h } from "./dom.js";
import { FeedScreen } from "./feed_screen.js";
import { providerLink } from "./lists.js";
import { serviceAddress } from "./route.js";
import { shown, when } from "./text.js";

/** The screen. */
export class EventsScreen extends FeedScreen {
  search = "Search events";
  loads = false;

  get wantsLoads() {
    return this.loads;
  }

  constructor(app) {
    const loads = h("input", { type: "checkbox", id: "with-loads", change: () => this.#withLoads(loads.checked) });
    const table = {
      columns: [
        {
          name: "at",
          title: "Time",
          width: "10rem",
          number: true,
          draw: (change) => when(change.at),
        },
        {
          name: "kind",
          title: "Change",
          width: "7.5rem",
          draw: (change) => h("span", { class: `mark ${markOf(change)}` }, shown(word(change))),
        },
        { name: "service", title: "Service or provider", role: "main", draw: (change) => shown(subject(change)) },
        { name: "hostport", title: "Address", mono: true },
        {
          name: "provider",
          title: "Provider",
          number: true,
          draw: (change) => providerLink(change.provider),
          width: "minmax(5rem, .7fr)",
        },
        { name: "load", title: "Load", number: true, width: "minmax(4rem, .7fr)" },
        {
          name: "why",
          title: "Reason",
          role: "side",
          width: "minmax(6rem, 1fr)",
          draw: (change) => (change.why === word(change) ? "" : shown(change.why ?? "")),
        },
        { name: "revision", title: "Revision", number: true, unit: "id" },
      ],
      empty: () => (this.typed ? "Nothing matches." : "No change since this page was opened."),
      key: (change) => `${change.revision} ${change.kind} ${change.provider}`,
      target: (change) => (change.service ? serviceAddress(change.service) : null),
    };
    const controls = h("label", { class: "option", for: "with-loads" }, loads, " Loads");
    super(app, "Events", { noun: "event", table, controls });
  }

  changes() {
    this.came();
  }

  all() {
    return this.app.changes.list.filter((change) => this.loads || change.kind !== "load");
  }

  texts({ service, label, hostport, kind, provider }) {
    return [service, label, hostport, kind, provider];
  }

  #withLoads(wanted) {
    this.loads = wanted;
    this.app.renew();
    this.filter();
  }
}
