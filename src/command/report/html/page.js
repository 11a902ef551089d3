"use strict";
const filter = document.getElementById("filter");
const shown = document.getElementById("shown");
const rows = filter ? [...document.querySelectorAll("#services tbody tr")] : [];
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
let opened = [];
addEventListener("beforeprint", () => {
  opened = [...document.querySelectorAll("details:not([open])")];
  for (const details of opened) details.open = true;
});
addEventListener("afterprint", () => {
  for (const details of opened) details.open = false;
});
