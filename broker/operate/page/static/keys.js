// The keyboard.

import { h, replace } from "./dom.js";

const HELP = [
  ["/", "search"],
  ["j  ↓", "next row"],
  ["k  ↑", "previous row"],
  ["Home  End", "first and last row"],
  ["Enter", "details of the row"],
  ["Esc", "close details, then empty the search"],
  ["1 – 9", "go to a view"],
  ["r", "load again, now"],
  ["t", "colour scheme"],
  ["?", "this help"],
];

/** Attach the keyboard. `actions` has search, move(rows), activate, back, place(number), refresh, theme. */
export function attach(actions, help) {
  replace(
    help,
    h("h2", { id: "help-title" }, "Keyboard"),
    h(
      "dl",
      { class: "keys" },
      HELP.map(([keys, meaning]) =>
        h(
          "div",
          {},
          h(
            "dt",
            {},
            keys.split("  ").map((key) => h("kbd", {}, key)),
          ),
          h("dd", {}, meaning),
        ),
      ),
    ),
    h(
      "form",
      { method: "dialog" },
      h("button", { type: "button", class: "primary", click: () => help.close() }, "Close"),
    ),
  );
  document.addEventListener("keydown", (event) => {
    if (
      event.defaultPrevented ||
      event.ctrlKey ||
      event.metaKey ||
      event.altKey ||
      document.querySelector("dialog[open]")
    )
      return;
    const typing = event.target.matches("input, textarea, select");
    if (handle(event, typing, actions, help)) event.preventDefault();
  });
}

/** Return true if the key is one of the page's. */
function handle(event, typing, actions, help) {
  const { key } = event;
  if (key === "Escape") return actions.back();
  if (typing)
    return (key === "ArrowDown" || key === "Enter") && event.target.type === "search" ? actions.move(0) : false;
  const reading = event.target.closest("#detail, nav") !== null;
  switch (key) {
    case "/":
      return actions.search();
    case "j":
      return actions.move(1);
    case "k":
      return actions.move(-1);
    case "ArrowDown":
      return !reading && actions.move(1);
    case "ArrowUp":
      return !reading && actions.move(-1);
    case "Home":
      return !reading && actions.move(-Infinity);
    case "End":
      return !reading && actions.move(Infinity);
    case "Enter":
      return !event.target.matches("a, button, summary") && !reading && actions.activate();
    case "r":
      return actions.refresh();
    case "t":
      return actions.theme();
    case "?":
      help.showModal();
      return true;
    default:
      return /^[1-9]$/.test(key) && actions.place(Number(key));
  }
}
