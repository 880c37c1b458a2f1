// The colour scheme: that of the system, or the one chosen with the switch. A classic script, run before the first paint.
(() => {
  const KEY = "elkobroker.theme";
  const CHOICES = ["system", "light", "dark"];
  const root = document.documentElement;

  function stored() {
    try {
      const choice = localStorage.getItem(KEY);
      return CHOICES.includes(choice) ? choice : "system";
    } catch {
      return "system"; // storage is switched off
    }
  }

  function apply(choice) {
    root.dataset.theme = choice;
    const button = document.getElementById("theme");
    if (button === null) return;
    button.textContent = { system: "◐", light: "○", dark: "●" }[choice];
    button.setAttribute("aria-label", `Colour scheme: ${choice}`);
    button.title = `Colour scheme: ${choice}`;
  }

  function next() {
    const choice = CHOICES[(CHOICES.indexOf(root.dataset.theme) + 1) % CHOICES.length];
    apply(choice);
    try {
      localStorage.setItem(KEY, choice);
    } catch {
      // the choice lasts as long as the page
    }
  }

  apply(stored());
  document.addEventListener("DOMContentLoaded", () => {
    apply(root.dataset.theme);
    document.getElementById("theme").addEventListener("click", next);
  });
})();
