"use strict";
const all = (what, inside = document) => [...inside.querySelectorAll(what)];
const filter = document.getElementById("filter");
const shown = document.getElementById("shown");
const rows = filter ? all(".matrix tbody tr") : [];
const apply = () => {
  const words = filter.value.toLowerCase().split(" ");
  let count = 0;
  for (const row of rows) {
    const text = row.textContent.toLowerCase();
    row.hidden = !words.every((word) => text.includes(word));
    count += row.hidden ? 0 : 1;
  }
  shown.textContent = filter.value ? count + " of " + rows.length : "";
};
if (filter) {
  filter.parentElement.parentElement.hidden = false;
  filter.addEventListener("input", apply);
}
const sort = (table, heads, at) => {
  const isDown = heads[at].getAttribute("aria-sort") === "ascending";
  for (const head of heads) head.removeAttribute("aria-sort");
  heads[at].setAttribute("aria-sort", isDown ? "descending" : "ascending");
  const key = (row) => row.cells[at].dataset.sort ?? row.cells[at].textContent;
  const order = (a, b) => key(a).localeCompare(key(b), undefined, { numeric: true });
  const body = table.tBodies[0];
  body.append(...[...body.rows].sort((a, b) => (isDown ? order(b, a) : order(a, b))));
};
for (const table of all("table.sorts")) {
  const heads = [...table.tHead.rows[0].cells];
  heads.forEach((head, at) => {
    const button = document.createElement("button");
    button.type = "button";
    button.textContent = head.textContent;
    button.addEventListener("click", () => sort(table, heads, at));
    head.replaceChildren(button);
  });
}
const copy = async (pre) => {
  try {
    await navigator.clipboard.writeText(pre.textContent);
  } catch {
    getSelection().selectAllChildren(pre);
    document.execCommand("copy");
  }
};
for (const pre of all("pre.copy")) {
  const button = document.createElement("button");
  button.type = "button";
  button.className = "copies";
  button.textContent = "Copy";
  button.addEventListener("click", async () => {
    await copy(pre);
    button.textContent = "Copied";
    setTimeout(() => (button.textContent = "Copy"), 2000);
  });
  pre.before(button);
}
const open = () => {
  const target = document.getElementById(location.hash.slice(1));
  if (target?.tagName === "DETAILS") target.open = true;
};
addEventListener("hashchange", open);
open();
let opened = [];
addEventListener("beforeprint", () => {
  opened = all("details:not([open])");
  for (const details of opened) details.open = true;
});
addEventListener("afterprint", () => {
  for (const details of opened) details.open = false;
});
