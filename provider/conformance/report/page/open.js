// A link to something inside a closed <details> opens it.
function openTarget() {
  const target = document.getElementById(decodeURIComponent(location.hash.slice(1)));
  if (!target) return;
  for (let e = target; e; e = e.parentElement) if (e.tagName === "DETAILS") e.open = true;
  target.scrollIntoView();
}
addEventListener("hashchange", openTarget);
addEventListener("DOMContentLoaded", openTarget);
