"use strict";
// Plots, the theme, sorting and tabs of a report. Reads the figures from the page; asks nothing of anybody.
(() => {
  const root = document.documentElement;
  const specs = JSON.parse(document.getElementById("figures").textContent);
  const chosen = {};

  // Theme: the system's, until the button is used.
  const dark = window.matchMedia("(prefers-color-scheme: dark)");
  const isDark = () => (root.dataset.theme || (dark.matches ? "dark" : "light")) === "dark";

  // A colour of the page's style, by its name; only where a colour or a font stands.
  const named = /^var\((--[a-z]+)\)$/;
  const resolved = (value, style, coloured) => {
    if (typeof value === "string") {
      const match = coloured && named.exec(value);
      return match ? style.getPropertyValue(match[1]).trim() : value;
    }
    if (Array.isArray(value)) return coloured ? value.map((inner) => resolved(inner, style, true)) : value.map((inner) =>
      inner !== null && typeof inner === "object" ? resolved(inner, style, false) : inner);
    if (value !== null && typeof value === "object") {
      const copy = {};
      for (const [key, inner] of Object.entries(value)) copy[key] = resolved(inner, style, /color|family/.test(key));
      return copy;
    }
    return value;
  };
  const merged = (into, from) => {
    for (const [key, value] of Object.entries(from)) {
      const deeper = value !== null && typeof value === "object" && !Array.isArray(value);
      into[key] = deeper ? merged({ ...(into[key] || {}) }, value) : value;
    }
    return into;
  };

  const config = { responsive: true, displaylogo: false, modeBarButtonsToRemove: ["lasso2d", "select2d"], scrollZoom: false };
  const draw = (name) => {
    const spec = specs[name];
    const element = document.querySelector(`[data-plot="${name}"]`);
    const choice = spec.choices.find((one) => one.value === chosen[name]) || { value: spec.shown, layout: {} };
    const style = getComputedStyle(root);
    const layout = merged({ ...spec.layout }, choice.layout);
    const narrow = element.clientWidth < 560;
    if (narrow && layout.yaxis) {
      layout.yaxis = { ...layout.yaxis, title: { text: "GiB" } };
      layout.margin = { ...layout.margin, l: 40, r: 6 };
      layout.annotations = (layout.annotations || []).map((one) => ({ ...one, font: { ...one.font, size: 10 } }));
    }
    const data = spec.data.filter((trace) => trace.meta === choice.value);
    Plotly.react(element, resolved(data, style, false), resolved(layout, style, false), config);
  };
  const drawAll = () => Object.keys(specs).forEach(draw);

  const radios = (holder, group, options, first, act) => {
    const set = document.createElement("fieldset");
    for (const { value, label } of options) {
      const box = document.createElement("label");
      const input = document.createElement("input");
      Object.assign(input, { type: "radio", name: group, value, checked: value === first });
      input.addEventListener("change", () => act(value));
      const text = document.createElement("span");
      text.textContent = label;
      box.append(input, text);
      set.append(box);
    }
    holder.append(set);
  };

  for (const [name, spec] of Object.entries(specs)) {
    chosen[name] = spec.shown;
    if (spec.choices.length > 1) {
      const holder = document.querySelector(`[data-controls="${name}"]`);
      radios(holder, `show-${name}`, spec.choices, spec.shown, (value) => { chosen[name] = value; draw(name); });
    }
  }
  for (const holder of document.querySelectorAll("[data-tabs]")) {
    const tabs = [...holder.parentElement.querySelectorAll("[data-tab]")];
    const options = tabs.map((tab) => ({ value: tab.dataset.tab, label: tab.dataset.tab }));
    radios(holder, `tab-${holder.dataset.tabs}`, options, options[0].value, (value) => {
      for (const tab of tabs) tab.hidden = tab.dataset.tab !== value;
    });
  }

  document.getElementById("theme").addEventListener("click", () => {
    root.dataset.theme = isDark() ? "light" : "dark";
    drawAll();
  });
  dark.addEventListener("change", drawAll);

  // Sorting: numbers by their bytes, text by its letters; a second click turns it round.
  const key = (row, column) => {
    const cell = row.cells[column];
    if (!cell) return "";
    const text = cell.dataset.sort !== undefined ? cell.dataset.sort : cell.textContent.trim();
    return text !== "" && Number.isFinite(Number(text)) ? Number(text) : text;
  };
  const compare = (a, b) => typeof a === typeof b
    ? (typeof a === "number" ? a - b : a.localeCompare(b))
    : (typeof a === "number" ? -1 : 1);
  for (const table of document.querySelectorAll("table.sortable")) {
    const heads = [...table.tHead.rows[0].cells];
    heads.forEach((head, column) => head.querySelector("button").addEventListener("click", () => {
      const falling = head.getAttribute("aria-sort") === "descending"
        || (head.getAttribute("aria-sort") === "none" && !head.classList.contains("number"));
      heads.forEach((other) => other.setAttribute("aria-sort", "none"));
      head.setAttribute("aria-sort", falling ? "ascending" : "descending");
      const rows = [...table.tBodies[0].rows].map((row) => [key(row, column), row]);
      rows.sort(([a], [b]) => (falling ? 1 : -1) * compare(a, b));
      table.tBodies[0].append(...rows.map(([, row]) => row));
    }));
  }

  for (const button of document.querySelectorAll(".copy")) {
    button.addEventListener("click", async () => {
      const code = button.parentElement.querySelector("code");
      try {
        await navigator.clipboard.writeText(code.textContent);
        button.textContent = "Copied";
      } catch {
        getSelection().selectAllChildren(code);
        button.textContent = "Selected";
      }
      setTimeout(() => { button.textContent = "Copy"; }, 1500);
    });
  }

  window.addEventListener("beforeprint", () => {
    for (const details of document.querySelectorAll("details")) details.open = true;
  });
  drawAll();
  root.dataset.ready = "yes";
})();
