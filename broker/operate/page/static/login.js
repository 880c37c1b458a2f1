// The form for a token, shown when the API asks for a user.

import { access, hasToken, useToken } from "./api.js";
import { h, replace, say } from "./dom.js";
import { shown } from "./text.js";

/** Attach the form to its dialog. `entered` is called with a new token in use. */
export function attach(dialog, entered) {
  const input = h("input", {
    id: "token",
    type: "password",
    autocomplete: "off",
    spellcheck: "false",
    required: true,
    maxlength: 4096,
    "aria-describedby": "login-problem",
  });
  const problem = h("p", { id: "login-problem", class: "problem", role: "alert" });
  const form = h(
    "form",
    {
      submit: (event) => {
        event.preventDefault();
        const token = input.value.trim();
        // A header takes visible ASCII only.
        if (!/^[\x21-\x7e]+$/.test(token))
          return say(problem, "A token is letters, digits and punctuation without spaces.");
        input.value = "";
        useToken(token);
        dialog.close();
        entered();
      },
    },
    h("h2", { id: "login-title" }, "Sign in"),
    h("p", {}, "This broker shows itself to its users only. ", h("code", {}, "brokerctl passwd"), " makes tokens."),
    h("label", { for: "token" }, "Token"),
    input,
    problem,
    h("button", { class: "primary" }, "Sign in"),
  );
  replace(dialog, form);
  access.addEventListener("refused", ({ detail }) => {
    if (dialog.open) return;
    say(problem, hasToken() ? shown(detail.message || "The token is not valid.") : "");
    useToken(null);
    dialog.showModal();
    input.focus();
  });
}
