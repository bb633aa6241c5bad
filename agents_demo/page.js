"use strict";
// A node shows its text, its ancestors and descendants; the slider shows the graph up to a step.
for (const figure of document.querySelectorAll("figure[data-graph]")) {
  const svg = figure.querySelector("svg"), detail = figure.querySelector(".detail"), slider = figure.querySelector("input");
  const nodes = new Map([...svg.querySelectorAll(".node")].map((n) => [n.dataset.id, n]));
  const edges = [...svg.querySelectorAll(".edge")];
  const idle = detail.textContent;
  const walk = (start, from, to, seen) => {
    for (const e of edges)
      if (e.dataset[from] === start && !seen.has(e)) { seen.add(e); walk(e.dataset[to], from, to, seen); }
    return seen;
  };
  const focus = (node) => {
    for (const near of svg.querySelectorAll(".near")) near.classList.remove("near");
    svg.classList.toggle("focused", !!node);
    detail.textContent = node ? node.querySelector("title").textContent : idle;
    if (!node) return;
    const id = node.dataset.id, found = [...walk(id, "from", "to", new Set()), ...walk(id, "to", "from", new Set())];
    node.classList.add("near");
    for (const e of found) for (const x of [e, nodes.get(e.dataset.from), nodes.get(e.dataset.to)]) if (x) x.classList.add("near");
  };
  svg.addEventListener("click", (event) => focus(event.target.closest(".node")));
  svg.addEventListener("keydown", (event) => {
    if (event.key === "Enter" || event.key === " ") { event.preventDefault(); focus(event.target.closest(".node")); }
    if (event.key === "Escape") focus(null);
  });
  slider.addEventListener("input", () => {
    for (const x of svg.querySelectorAll("[data-n]")) x.classList.toggle("later", Number(x.dataset.n) > Number(slider.value));
  });
  for (const hidden of figure.querySelectorAll(".script")) hidden.hidden = false;
}
