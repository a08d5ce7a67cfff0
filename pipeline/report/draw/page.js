"use strict";
(function () {
  const root = document.documentElement;
  const box = document.getElementById("figures");
  const figures = JSON.parse(box.textContent);
  const charts = Array.from(document.querySelectorAll(".chart"));
  const drawn = new Set();
  let printing = false;
  root.classList.add("js");

  // Colours

  const darkness = window.matchMedia("(prefers-color-scheme: dark)");
  const button = document.getElementById("scheme");

  function scheme() {
    if (printing) return "light";
    return root.dataset.scheme || (darkness.matches ? "dark" : "light");
  }

  const COLOUR = /colou?r$|^color/i;

  // Only under colour keys: elsewhere, text like a role may be a name in the data.
  function coloured(value, colours, key) {
    if (typeof value === "string") {
      if (!COLOUR.test(key)) return value;
      if (value[0] !== "@") return value;
      const [role, percent] = value.slice(1).split("/");
      const colour = colours[role];
      if (!colour) return value;
      if (!percent) return colour;
      const parts = [1, 3, 5].map((at) => parseInt(colour.slice(at, at + 2), 16));
      return "rgba(" + parts.join(",") + "," + Number(percent) / 100 + ")";
    }
    if (Array.isArray(value)) return value.map((item) => coloured(item, colours, key));
    if (value && typeof value === "object") {
      const out = {};
      for (const name of Object.keys(value)) out[name] = coloured(value[name], colours, name);
      return out;
    }
    return value;
  }

  // Charts

  function wrapped(label) {
    const [, words, amount] = /^(.*?)(?: · ([^·]*))?$/.exec(label);
    const lines = [""];
    for (const word of words.split(" ")) {
      const last = lines[lines.length - 1];
      if (last && last.length + word.length > 13) lines.push(word);
      else lines[lines.length - 1] = last ? last + " " + word : word;
    }
    if (amount) lines.push(amount);
    return lines.join("<br>");
  }

  function draw(element, width) {
    const figure = coloured(figures.charts[element.id], figures.schemes[scheme()], "");
    const wide = width || element.clientWidth;
    const layout = figure.layout;
    layout.width = wide;
    if (wide < 480) {
      layout.font.size = 12;
      // A phone has no room for these margins; plotly widens them as far as labels need.
      Object.assign(layout.margin, { l: Math.min(layout.margin.l, 8), r: Math.min(layout.margin.r, 24), b: Math.min(layout.margin.b, 14) });
      for (const trace of figure.data) {
        if (trace.type !== "sankey") continue;
        trace.textfont.size = 11;
        trace.node.label = trace.node.label.map(wrapped);
        layout.height *= 1.15;
        layout.margin.b = 34;
      }
      for (const key of Object.keys(layout)) {
        const axis = layout[key];
        if (/^xaxis/.test(key) && axis.ticktext && axis.ticktext.length > 7) {
          const keep = (_, at) => at % 2 === 0;
          axis.tickvals = axis.tickvals.filter(keep);
          axis.ticktext = axis.ticktext.filter(keep);
        }
      }
    }
    // Drawn from scratch: otherwise a flow would animate to its new places, and be printed halfway.
    if (drawn.has(element)) window.Plotly.purge(element);
    drawn.add(element);
    element.style.minHeight = "0";
    return window.Plotly.newPlot(element, figure.data, layout, { displayModeBar: false, responsive: false });
  }

  function shown(element) {
    return element.clientWidth > 0 && !element.closest("details:not([open])");
  }

  function redraw() {
    for (const element of drawn) if (shown(element)) draw(element);
  }

  for (const element of charts) element.style.minHeight = element.dataset.height + "px";
  const near = new IntersectionObserver(
    (entries) => {
      for (const entry of entries) if (entry.isIntersecting && !drawn.has(entry.target) && shown(entry.target)) draw(entry.target);
    },
    { rootMargin: "400px" }
  );
  for (const element of charts) near.observe(element);

  // Charts far away are drawn when the browser is idle.
  const idle = window.requestIdleCallback || ((then) => window.setTimeout(then, 60));
  function rest() {
    const next = charts.find((element) => !drawn.has(element) && shown(element));
    if (next) {
      draw(next);
      idle(rest);
    } else {
      root.dataset.drawn = String(drawn.size);
    }
  }
  if (document.readyState === "complete") idle(rest);
  else window.addEventListener("load", () => idle(rest));

  // A folded chart has no width until it is opened.
  for (const fold of document.querySelectorAll("details")) {
    fold.addEventListener("toggle", () => {
      for (const element of fold.querySelectorAll(".chart")) if (!drawn.has(element) && shown(element)) draw(element);
    });
  }

  let wait = 0;
  let wideBefore = window.innerWidth;
  window.addEventListener("resize", () => {
    if (printing || window.innerWidth === wideBefore) return;
    wideBefore = window.innerWidth;
    window.clearTimeout(wait);
    wait = window.setTimeout(redraw, 120);
  });

  // Scheme

  function tell() {
    button.textContent = scheme() === "dark" ? "Light colours" : "Dark colours";
  }
  button.addEventListener("click", () => {
    root.dataset.scheme = scheme() === "dark" ? "light" : "dark";
    tell();
    redraw();
  });
  darkness.addEventListener("change", () => {
    tell();
    redraw();
  });
  tell();

  // Paper

  const PAPER = 690;
  window.addEventListener("beforeprint", () => {
    printing = true;
    for (const panel of document.querySelectorAll(".panel[hidden]")) {
      panel.hidden = false;
      panel.dataset.folded = "";
    }
    for (const element of charts) if (shown(element)) draw(element, PAPER);
  });
  window.addEventListener("afterprint", () => {
    printing = false;
    for (const panel of document.querySelectorAll(".panel[data-folded]")) {
      panel.hidden = true;
      delete panel.dataset.folded;
    }
    redraw();
  });

  // One panel of several

  for (const element of document.querySelectorAll(".switch")) {
    const panels = Array.from(element.querySelectorAll(":scope > .panel"));
    const choice = element.querySelector("select");
    const show = () => {
      panels.forEach((panel, at) => {
        panel.hidden = String(at) !== choice.value;
      });
      const panel = panels[Number(choice.value)];
      for (const chart of panel ? panel.querySelectorAll(".chart") : []) draw(chart);
    };
    panels.forEach((panel, at) => {
      panel.hidden = at !== 0;
    });
    choice.addEventListener("change", show);
    choice.closest(".choose").hidden = panels.length < 2;
  }

  // Search by id

  for (const input of document.querySelectorAll("input[type=search]")) {
    const scope = document.getElementById(input.getAttribute("aria-controls"));
    const said = document.getElementById(input.dataset.output);
    const documents = Array.from(scope.querySelectorAll(".doc-text"));
    const rows = Array.from(scope.querySelectorAll(".row"));
    input.closest(".choose").hidden = false;
    const mark = (element, wanted) => {
      const text = element.dataset.text || (element.dataset.text = element.textContent);
      element.textContent = "";
      const at = wanted ? text.toLowerCase().indexOf(wanted) : -1;
      if (at < 0) {
        element.textContent = text;
        return;
      }
      const hit = document.createElement("mark");
      hit.className = "hit";
      hit.textContent = text.slice(at, at + wanted.length);
      element.append(text.slice(0, at), hit, text.slice(at + wanted.length));
    };
    input.addEventListener("input", () => {
      const wanted = input.value.trim().toLowerCase();
      let found = 0;
      for (const element of documents) {
        const id = element.querySelector(".id");
        const hit = !wanted || (id.dataset.text || id.textContent).toLowerCase().includes(wanted);
        element.hidden = !hit;
        found += hit ? 1 : 0;
        mark(id, hit ? wanted : "");
      }
      for (const row of rows) {
        row.hidden = !row.querySelector(".doc-text:not([hidden])");
        if (!wanted || row.hidden) continue;
        for (const fold of [row.querySelector("details"), row.closest("details")]) if (fold) fold.open = true;
      }
      said.textContent = wanted ? found + " of " + documents.length + " " + input.dataset.what : "";
    });
  }

  // Copying

  for (const copy of document.querySelectorAll(".copy")) {
    const text = copy.parentElement.querySelector("pre");
    copy.hidden = false;
    copy.addEventListener("click", () => {
      const done = () => {
        copy.textContent = "Copied";
        window.setTimeout(() => (copy.textContent = "Copy"), 2000);
      };
      const select = () => window.getSelection().selectAllChildren(text);
      if (navigator.clipboard) navigator.clipboard.writeText(text.textContent).then(done, select);
      else select();
    });
  }
})();
