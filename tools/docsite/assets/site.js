// The site works without this script: it adds the search, the buttons that copy, the menu on a
// phone and the change between light and dark.
"use strict";
(function () {
  var root = document.body.dataset.root;
  var page = document.documentElement;

  document.getElementById("theme").addEventListener("click", function () {
    var dark = page.dataset.theme ? page.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
    page.dataset.theme = dark ? "light" : "dark";
    try { localStorage.setItem("theme", page.dataset.theme); } catch (e) { /* the choice lasts for this page */ }
  });

  var menu = document.getElementById("menu");
  menu.addEventListener("click", function () {
    var open = document.getElementById("nav").classList.toggle("open");
    menu.setAttribute("aria-expanded", String(open));
  });

  function copied(button, ok) {
    button.textContent = ok ? "Copied" : "Select and copy by hand";
    setTimeout(function () { button.textContent = "Copy"; }, 2000);
  }
  document.querySelectorAll(".copy").forEach(function (button) {
    button.addEventListener("click", function () {
      var code = button.parentElement.querySelector("code");
      if (navigator.clipboard) {
        navigator.clipboard.writeText(code.textContent).then(function () { copied(button, true); }, function () { copied(button, false); });
        return;
      }
      // A page from a disk or of plain http has no clipboard.
      var range = document.createRange();
      range.selectNodeContents(code);
      var selection = getSelection();
      selection.removeAllRanges();
      selection.addRange(range);
      copied(button, document.execCommand("copy"));
    });
  });

  var input = document.getElementById("search");
  var results = document.getElementById("results");
  function load() {
    if (document.getElementById("index")) { return; }
    var script = document.createElement("script");
    script.id = "index";
    script.src = root + "assets/index.js";
    script.onload = search;
    document.head.appendChild(script);
  }
  function score(entry, words) {
    var total = 0;
    for (var i = 0; i < words.length; i++) {
      var word = words[i];
      var points = (entry.h.toLowerCase().includes(word) ? 8 : 0) + (entry.p.toLowerCase().includes(word) ? 4 : 0) + (entry.t.toLowerCase().includes(word) ? 1 : 0);
      if (!points) { return 0; }
      total += points;
    }
    return total;
  }
  function search() {
    var words = input.value.toLowerCase().split(/\s+/).filter(Boolean);
    results.textContent = "";
    results.hidden = !words.length || !window.searchIndex;
    if (results.hidden) { return; }
    var found = window.searchIndex.map(function (entry) { return { entry: entry, score: score(entry, words) }; })
      .filter(function (f) { return f.score; }).sort(function (a, b) { return b.score - a.score; }).slice(0, 12);
    found.forEach(function (f) {
      var link = document.createElement("a");
      link.href = root + f.entry.u;
      link.textContent = f.entry.h || f.entry.p;
      var where = document.createElement("small");
      var at = Math.max(0, f.entry.t.toLowerCase().indexOf(words[0]) - 40);
      where.textContent = f.entry.p + ": " + f.entry.t.slice(at, at + 110);
      link.appendChild(where);
      var item = document.createElement("li");
      item.appendChild(link);
      results.appendChild(item);
    });
    if (!found.length) { results.textContent = "Nothing found."; }
  }
  input.addEventListener("focus", load);
  input.addEventListener("input", search);
  document.addEventListener("keydown", function (event) {
    if (event.key === "/" && document.activeElement !== input) { event.preventDefault(); input.focus(); }
    if (event.key === "Escape") { results.hidden = true; }
  });
  document.addEventListener("click", function (event) {
    if (!event.target.closest(".search")) { results.hidden = true; }
  });
})();
