// The actions of operators: buttons and dialogs made of the API's table, of which the broker sends those that the user
// may do.

import { find, post, segment } from "./api.js";
import { h, replace, say } from "./dom.js";
import { title } from "./lists.js";
import { shown } from "./text.js";

/** Characters of an answer that are shown. */
const LONG = 2_000;

/** Titles of actions whose names leave out what they act on. */
const TITLES = { move: "Move left messages" };

/** Titles of the actions that also begin what is in no table yet: buttons of the overview. */
const BEGIN = { publish: "Publish a message", "queue-put": "Put into a queue" };

/** The registration of an instance, which is an endpoint of the wire HTTP. */
const OFFER = {
  name: "offer",
  title: "Offer a service",
  help: "Registers an instance of a service for some time.",
  fills: {},
  confirm: "",
  schema: {
    required: ["service", "hostport"],
    properties: {
      service: { type: "string", maxLength: 1_024, description: "its name" },
      hostport: { type: "string", maxLength: 1_024, description: "HOST:PORT" },
      ttl: { type: "number", minimum: 1, maximum: 86_400, default: 600, description: "seconds until it ends" },
    },
  },
  async send({ service, hostport, ttl }) {
    const where = `/v1/services/${segment(service)}/${segment(hostport)}`;
    const { provider, expires, warnings } = await post(where, { hostport, ttl }, "PUT");
    return { provider, expires, ...(warnings?.length ? { warnings } : {}) };
  },
};

/** The actions, and the dialog that asks for the parameters of one. */
export class Actions {
  #rows = [];

  constructor(dialog) {
    this.dialog = dialog;
  }

  /** Read the table again: it depends on the user. */
  async load() {
    this.#rows = (await find("/v1/actions").catch(denied))?.actions ?? [];
  }

  /**
   * Return the buttons for a place: "broker", "provider", "session", "service", "topic" or "queue". `row` has the values
   * that fill parameters; an action that lacks one has no button. `done` is called after an action.
   */
  buttons(on, row = {}, done = () => {}) {
    const has = (column) => row[column] !== undefined && row[column] !== null && row[column] !== "";
    const rows = this.#rows.filter((action) => action.on === on && Object.values(action.fills).every(has));
    if (on === "broker") {
      const begin = this.#rows.filter((action) => Object.hasOwn(BEGIN, action.name));
      rows.unshift(OFFER, ...begin.map((action) => ({ ...action, title: BEGIN[action.name] })));
    }
    if (rows.length === 0) return null;
    return h(
      "div",
      { class: "chips", role: "group", "aria-label": "Actions" },
      rows.map((action) =>
        h("button", { type: "button", class: "chip", click: () => this.#ask(action, row, done) }, titleOf(action)),
      ),
    );
  }

  #ask(action, row, done) {
    const filled = Object.fromEntries(Object.entries(action.fills).map(([name, column]) => [name, row[column]]));
    const fields = Object.entries(action.schema.properties).map(([name, schema]) => new Field(action, name, schema, filled));
    const question = h("p", { class: "question" });
    const problem = h("p", { class: "problem", role: "alert" });
    const values = () => Object.assign({}, ...fields.map((field) => field.given()));
    const ask = () => say(question, questionOf(action, values()));
    const submit = async (event) => {
      event.preventDefault();
      button.disabled = true;
      say(problem, "");
      try {
        this.#answer(action, await (action.send?.(values()) ?? post(`/v1/actions/${action.name}`, values())));
        done();
      } catch (error) {
        say(problem, shown(error.message, LONG));
      } finally {
        button.disabled = false;
      }
    };
    const button = h("button", { class: "primary" }, titleOf(action));
    const [summary, ...more] = action.help.split("\n\n");
    replace(
      this.dialog,
      h(
        "form",
        { submit, input: ask },
        h("h2", { id: "action-title" }, titleOf(action)),
        h("p", { title: more.join(" ") }, summary),
        fields.map((field) => field.element),
        action.confirm ? question : null,
        problem,
        h("div", { class: "chips" }, button, this.#closing("Cancel")),
      ),
    );
    ask();
    this.dialog.showModal();
  }

  #answer(action, answer) {
    const rows = Object.entries(answer).filter(([name]) => name !== "text");
    replace(
      this.dialog,
      h("h2", { id: "action-title" }, titleOf(action)),
      answer.text ? h("pre", { class: "answer" }, shown(answer.text, LONG)) : null,
      answer.text
        ? null
        : h(
            "dl",
            { class: "facts" },
            rows.map(([name, value]) => h("div", {}, h("dt", {}, title(name)), h("dd", {}, textOf(value)))),
          ),
      h("div", { class: "chips" }, this.#closing("Close")),
    );
  }

  #closing(text) {
    return h("button", { type: "button", class: "chip", click: () => this.dialog.close() }, text);
  }
}

/** One parameter: its input, or its value if the row has filled it. */
class Field {
  constructor(action, name, schema, filled) {
    this.name = name;
    this.schema = (schema.anyOf ?? []).find((each) => each.type !== "null") ?? schema;
    this.filled = filled[name];
    const help = schema.description ?? "";
    const required = (action.schema.required ?? []).includes(name);
    if (this.filled !== undefined) {
      this.element = h("p", {}, title(name), ": ", h("b", {}, shown(String(this.filled), LONG)));
      return;
    }
    const id = `action-${name}`;
    const fallback = schema.default ?? null;
    const value = typeof fallback === "object" ? null : fallback;
    const shared = { id, required, title: help };
    if (this.schema.type === "boolean") this.input = h("input", { ...shared, type: "checkbox", required: false });
    else if (this.schema.enum)
      this.input = h(
        "select",
        shared,
        [required ? null : "", ...this.schema.enum].map((each) => (each === null ? null : h("option", {}, each))),
      );
    else if (this.schema.type === "number" || this.schema.type === "integer")
      this.input = h("input", {
        ...shared,
        type: "number",
        step: this.schema.type === "integer" ? 1 : "any",
        min: this.schema.minimum ?? this.schema.exclusiveMinimum,
        max: this.schema.maximum,
        value,
      });
    else if (this.schema.contentMediaType)
      // An input of one line would lose the line ends of a pasted text.
      this.input = h("textarea", { ...shared, rows: 4, maxlength: this.schema.maxLength, spellcheck: "false" }, value);
    else
      this.input = h("input", {
        ...shared,
        type: "text",
        maxlength: this.schema.maxLength ?? 4_096,
        spellcheck: "false",
        autocomplete: "off",
        placeholder: this.schema.type === "object" ? "name=value …" : null,
        value,
      });
    this.element = h("label", { class: this.schema.type === "boolean" ? "switch" : "" }, title(name), this.input);
  }

  /** Return the parameter by its name, or nothing if it was left out. */
  given() {
    const { name, input, schema } = this;
    if (this.filled !== undefined) return { [name]: this.filled };
    if (schema.type === "boolean") return input.checked ? { [name]: true } : {};
    const text = schema.contentMediaType ? input.value : input.value.trim();
    if (text === "") return {};
    if (schema.type === "number" || schema.type === "integer") return { [name]: Number(text) };
    if (schema.type !== "object") return { [name]: text };
    const pairs = text.split(/\s+/).map((word) => [word.split("=")[0], word.split("=").slice(1).join("=")]);
    return { [name]: Object.fromEntries(pairs.map(([key, value]) => [key, value === "default" ? null : value])) };
  }
}

/** Return null for a user without actions. Throws a `Problem` that may pass: a page without
 * buttons would look complete. */
function denied(error) {
  if (error.passing) throw error;
  return null;
}

/** Return the question before an action, with its parameters; "" if there is none, or to undo. */
function questionOf(action, values) {
  if (values.undo) return "";
  return action.confirm.replace(/\{(\w+)\}/g, (_, name) => shown(String(values[name] ?? "everything"), LONG));
}

/** Return the name of an action as a title: "queue-requeue-dead" is "Requeue dead", beside a queue. */
function titleOf(action) {
  return action.title ?? TITLES[action.name] ?? title(action.name.replace(/^queue-/, "").replaceAll("-", " "));
}

function textOf(value) {
  if (Array.isArray(value)) return shown(value.map((each) => JSON.stringify(each)).join("\n"), LONG);
  return shown(typeof value === "object" ? JSON.stringify(value) : String(value), LONG);
}
