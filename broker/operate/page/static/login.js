// The form for a password or a token, shown when the API asks for a user.

import { access, hasCredentials, useCredentials } from "./api.js";
import { h, replace, say } from "./dom.js";
import { shown } from "./text.js";

/** Attach the form to its dialog. `entered` is called with new credentials in use. */
export function attach(dialog, entered) {
  const user = h("input", { id: "login-user", autocomplete: "username", spellcheck: "false", maxlength: 255 });
  const secret = h("input", {
    id: "login-secret",
    type: "password",
    autocomplete: "current-password",
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
        const name = user.value.trim();
        if (name.includes(":")) return say(problem, "The name of a user has no colon.");
        // A header takes visible ASCII only.
        if (!name && !/^[\x21-\x7e]+$/.test(secret.value.trim()))
          return say(problem, "A token is letters, digits and punctuation without spaces; a password needs its user.");
        useCredentials(name ? basic(name, secret.value) : `Bearer ${secret.value.trim()}`);
        secret.value = "";
        dialog.close();
        entered();
      },
    },
    h("h2", { id: "login-title" }, "Sign in"),
    h(
      "p",
      {},
      "This broker shows itself to its users only. ",
      h("code", {}, "brokerctl passwd"),
      " sets passwords, and ",
      h("code", {}, "brokerctl token add"),
      " makes tokens.",
    ),
    h("label", { for: "login-user" }, "User (empty for a token)"),
    user,
    h("label", { for: "login-secret" }, "Password or token"),
    secret,
    problem,
    h("button", { class: "primary" }, "Sign in"),
  );
  replace(dialog, form);
  access.addEventListener("refused", ({ detail }) => {
    if (dialog.open) return;
    say(problem, hasCredentials() ? shown(detail.message || "They are not valid.") : "");
    useCredentials(null);
    dialog.showModal();
    (user.value ? secret : user).focus();
  });
}

/** Return the value of a header for basic authentication (RFC 7617), in UTF-8. */
function basic(name, password) {
  return `Basic ${btoa(String.fromCharCode(...new TextEncoder().encode(`${name}:${password}`)))}`;
}
