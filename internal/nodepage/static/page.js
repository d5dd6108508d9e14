// The node page: asks the daemon again and again, and shows what it answers. It makes elements and sets their text; nothing that
// was read becomes markup (the policy of the page forbids that, too).
"use strict";

const $ = (id) => document.getElementById(id);

// --- the token: in the address behind #, then in this tab alone

const tokenKey = "berth-token";

function takeToken() {
  const found = /^#token=([0-9a-f]+)$/.exec(location.hash);
  if (found) {
    sessionStorage.setItem(tokenKey, found[1]);
    history.replaceState(null, "", location.pathname);
  }
}

// Refused is the answer to a request without a token, or with a wrong one.
class Refused extends Error {
  constructor(wrong) {
    super(wrong ? "the token is wrong: berth page on the node prints the address with it" : "the page needs the token of this node");
    this.wrong = wrong;
  }
}

// A daemon that is away refuses at once. One that hangs, or a tunnel to it, does not answer at all.
const patience = 20000;

async function ask(path) {
  const token = sessionStorage.getItem(tokenKey);
  const stop = new AbortController();
  const timer = setTimeout(() => stop.abort(new Error("no answer for " + patience / 1000 + " seconds")), patience);
  try {
    const answer = await fetch(path, {
      headers: token ? { Authorization: "Bearer " + token } : {},
      cache: "no-store", credentials: "omit", redirect: "error", signal: stop.signal,
    });
    if (answer.status === 401) throw new Refused(Boolean(token));
    const isJSON = (answer.headers.get("Content-Type") || "").startsWith("application/json");
    const value = isJSON ? await answer.json() : { error: (await answer.text()).trim() };
    if (!answer.ok || !isJSON) throw new Error(value.error || "status " + answer.status);
    return value;
  } finally {
    clearTimeout(timer);
  }
}

// --- words

function size(bytes) {
  if (bytes < 0) return "-";
  let unit = 0;
  while (bytes >= 999.5 && unit < 5) { bytes /= 1000; unit++; }
  const digits = unit === 0 || bytes >= 99.95 ? 0 : bytes >= 9.995 ? 1 : 2;
  return (unit === 0 ? Math.round(bytes) : bytes.toFixed(digits)) + " " + ["B", "kB", "MB", "GB", "TB", "PB"][unit];
}

const percent = (cores) => cores < 0 ? "-" : (cores * 100).toFixed(1) + " %";

function age(seconds) {
  seconds = Math.max(seconds, 0);
  if (seconds < 120) return Math.floor(seconds) + " s";
  if (seconds < 7200) return Math.floor(seconds / 60) + " min";
  if (seconds < 172800) return Math.floor(seconds / 3600) + " h";
  return Math.floor(seconds / 86400) + " d";
}

function took(seconds) {
  if (seconds < 0.001) return (seconds * 1e6).toFixed(0) + " µs";
  if (seconds < 1) return (seconds * 1000).toFixed(seconds < 0.1 ? 1 : 0) + " ms";
  return seconds.toFixed(seconds < 10 ? 2 : 0) + " s";
}

const second = 1e9; // Go's durations are nanoseconds

// --- tables: a row is kept while its key is there, so that the cursor and the screen reader stay where they are

function cell(kind, text, name) {
  return { kind, text: String(text), name: name || "" };
}

function fill(row, cells) {
  cells.forEach((c, i) => {
    let td = row.cells[i];
    if (!td) td = row.insertCell();
    if (td.className !== (c.kind + " " + c.name).trim()) td.className = (c.kind + " " + c.name).trim();
    if (c.make) {
      if (!td.firstElementChild) td.append(c.make());
      return;
    }
    if (td.textContent !== c.text) td.textContent = c.text;
  });
}

// show makes the body of a table have these rows: {key, cells, name}.
function show(table, rows) {
  const body = $(table).tBodies[0];
  const present = new Map();
  for (const row of body.rows) present.set(row.dataset.key, row);
  const wanted = new Set(rows.map((r) => r.key));
  for (const [key, row] of present) if (!wanted.has(key)) { row.remove(); present.delete(key); }
  let at = body.firstElementChild;
  for (const r of rows) {
    let row = present.get(r.key);
    if (!row) {
      row = document.createElement("tr");
      row.dataset.key = r.key;
    }
    if (row === at) at = at.nextElementSibling;
    else body.insertBefore(row, at);
    if (row.className !== (r.name || "")) row.className = r.name || "";
    fill(row, r.cells);
  }
  $(table.replace("-table", "-none")).hidden = rows.length > 0;
}

// --- pods

let state = null;
const order = { by: "cpu", down: true };

const orders = {
  name: (p) => p.namespace + "/" + p.name,
  state: (p) => (p.ready ? 2 : 0) - ((p.containers || []).some((c) => c.state !== "running") ? 1 : 0),
  cpu: (p) => p.cpu, memory: (p) => p.memory, received: (p) => p.received, sent: (p) => p.sent,
  restarts: (p) => p.restarts, age: (p) => Date.parse(p.created),
};

function figures(x, now) {
  return [
    cell("number", percent(x.cpu)), cell("number", size(x.memory)),
    cell("number", size(x.received), "wide"), cell("number", size(x.sent), "wide"),
    cell("number", x.restarts, x.restarts > 0 ? "warn" : ""), cell("number", age((now - Date.parse(x.created)) / 1000)),
  ];
}

function logButton(title, id) {
  return () => {
    const button = document.createElement("button");
    button.textContent = "log";
    button.setAttribute("aria-label", "log of " + title);
    button.addEventListener("click", () => openLog(title, id));
    return button;
  };
}

function showPods() {
  const now = Date.parse(state.time);
  const text = $("filter").value.toLowerCase();
  const matches = (p) => (p.namespace + "/" + p.name).toLowerCase().includes(text) || (p.containers || []).some((c) => c.name.toLowerCase().includes(text));
  const key = orders[order.by];
  const pods = state.pods.filter((p) => (p.ready || $("all").checked) && matches(p));
  pods.sort((a, b) => {
    const x = key(a), y = key(b);
    const c = x < y ? -1 : x > y ? 1 : 0;
    return (order.down ? -c : c) || (orders.name(a) < orders.name(b) ? -1 : 1);
  });
  const rows = [];
  for (const p of pods) {
    const full = p.namespace + "/" + p.name;
    rows.push({ key: p.id, name: "pod", cells: [
      cell("", full), cell("", p.ready ? "ready" : "not ready", p.ready ? "good" : "bad"), ...figures(p, now), cell("", ""),
    ] });
    for (const c of p.containers || []) {
      rows.push({ key: c.id, name: "container", cells: [
        cell("", c.name), cell("", c.state, c.state === "running" ? "good" : "warn"), ...figures(c, now),
        { kind: "", name: "", make: logButton(full + " " + c.name, c.id) },
      ] });
    }
  }
  show("pods-table", rows);
  const ready = state.pods.filter((p) => p.ready);
  const sum = (of) => ready.reduce((n, p) => n + Math.max(of(p), 0), 0);
  $("pods-count").textContent = ready.length + " ready, " + (state.pods.length - ready.length) + " not; CPU " +
    percent(sum((p) => p.cpu)) + ", memory " + size(sum((p) => p.memory));
}

function showOrder() {
  for (const button of document.querySelectorAll("[data-sort]")) {
    const sorted = button.dataset.sort === order.by;
    button.parentElement.setAttribute("aria-sort", sorted ? (order.down ? "descending" : "ascending") : "none");
  }
}

// --- jobs

function showJobs() {
  const jobs = state.jobs || [];
  show("jobs-table", jobs.map((j) => ({ key: j.kind + " " + j.key + " " + (j.id || ""), cells: [
    cell("", j.kind + (j.cancelled ? " (cancelled)" : "")), cell("text", j.key), cell("", j.stage),
    cell("number", age(j.stageAge / second) + (j.slow ? " (slow)" : ""), j.slow ? "bad" : ""),
    cell("text", j.waitsFor || "-"), cell("number", age(j.age / second)),
  ] })));
  $("jobs-count").textContent = jobs.length || "";
}

// --- start times

function rect(name, share) {
  const r = document.createElementNS("http://www.w3.org/2000/svg", "rect");
  r.setAttribute("class", name);
  r.setAttribute("height", "100%");
  r.setAttribute("width", Math.max(share * 100, 0.5).toFixed(2) + "%");
  return r;
}

function bar(s, most) {
  const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg");
  svg.setAttribute("aria-hidden", "true"); // the numbers are beside it
  svg.append(rect("most", s.most / most), rect("median", s.median / most));
  return svg;
}

let plotted = "";

function showStages() {
  const stages = state.stages || [];
  $("starts-none").hidden = stages.length > 0;
  const now = JSON.stringify(stages);
  if (now === plotted) return;
  plotted = now;
  const jobs = new Map();
  for (const s of stages) jobs.set(s.job, [...(jobs.get(s.job) || []), s]);
  const plots = [];
  for (const [job, all] of jobs) {
    const title = document.createElement("h3");
    title.textContent = job;
    const table = document.createElement("table");
    table.className = "plot";
    const head = table.createTHead().insertRow();
    for (const [name, kind] of [["Stage", ""], ["Ended", "number"], ["Median", "number"], ["95 %", "number"], ["", ""]]) {
      const th = document.createElement("th");
      th.className = kind;
      th.textContent = name;
      head.append(th);
    }
    const body = table.createTBody();
    const most = Math.max(...all.map((s) => s.most), 1e-6);
    for (const s of all) {
      fill(body.insertRow(), [
        cell("", s.name), cell("number", s.count), cell("number", took(s.median)), cell("number", took(s.most)),
        { kind: "", name: "", make: () => bar(s, most) },
      ]);
    }
    const scroll = document.createElement("div");
    scroll.className = "scroll";
    scroll.append(table);
    plots.push(title, scroll);
  }
  $("plots").replaceChildren(...plots);
}

// --- events

let events = [];
let lastEvent = 0;

async function readEvents() {
  const got = await ask("api/events?after=" + lastEvent);
  $("events-status").textContent = "";
  if (got.last < lastEvent) events = []; // the daemon has begun again
  lastEvent = got.last;
  if (got.events.length === 0 && events.length > 0) return;
  events = events.concat(got.events).sort((a, b) => Date.parse(a.time) - Date.parse(b.time)).slice(-300);
  show("events-table", events.slice().reverse().map((e) => ({ key: String(e.number), cells: [
    cell("", new Date(e.time).toLocaleTimeString()), cell("", e.kind), cell("text", e.pod), cell("text", e.container || "-"), cell("text", e.detail || ""),
  ] })));
}

// --- images, disk, findings

async function readImages() {
  const got = await ask("api/images");
  const images = got.images || [];
  show("images-table", images.map((i) => ({ key: i.id, cells: [
    cell("text", i.names.join(", ") || "(no name)"), cell("number", size(i.size)), cell("", i.id.replace("sha256:", "").slice(0, 12), "wide"), cell("", i.pinned ? "yes" : ""),
  ] })));
  $("images-count").textContent = images.length + ", " + size(images.reduce((n, i) => n + i.size, 0)) + " compressed";
  const body = $("disk-table").tBodies[0];
  (got.disk || []).forEach((d, i) => fill(body.rows[i] || body.insertRow(), [cell("text", d.mountpoint), cell("", d.holds), cell("number", size(d.bytes)), cell("number", d.inodes)]));
}

// The machine is examined only when somebody asks for it. Then the page asks for the result until it is there.
let examining = true; // an examination may be under way when the page is opened

async function readFindings(examine) {
  if (!examine && !examining) return;
  const got = await ask("api/findings" + (examine ? "?examine=1" : ""));
  examining = got.running;
  $("examine").disabled = got.running;
  $("doctor-status").textContent = got.running ? "examining this machine" : got.error ? "the examination failed: " + got.error :
    got.ended ? "examined at " + new Date(got.ended).toLocaleTimeString() + ", in " + took(got.took / second) : "not examined so far";
  const kinds = { ok: "good", warning: "warn", problem: "bad" };
  const count = (level) => got.findings.filter((f) => f.level === level).length;
  $("doctor-count").textContent = got.ended ? "problems: " + count("problem") + ", warnings: " + count("warning") : "";
  $("doctor-scroll").hidden = !got.findings.length;
  show("doctor-table", got.findings.map((f, i) => ({ key: i + f.id, cells: [
    cell("", f.skipped ? "skipped" : f.level, f.skipped ? "" : kinds[f.level]), cell("text", f.check),
    cell("text", f.skipped || f.evidence || ""), cell("text", f.fix || ""), cell("text", f.docs || "", "wide"),
  ] })));
}

// --- logs

const shownLines = 2000;
let log = null;

function openLog(title, id) {
  log = { id, cursor: "", lines: 0 };
  $("log-title").textContent = title;
  $("log-lines").replaceChildren();
  $("log-status").textContent = "reading";
  $("log").showModal();
  $("log-lines").focus();
  followLog(log);
}

async function followLog(mine) {
  while (log === mine) {
    let pause = 1000;
    try {
      if (document.hidden) throw null;
      const got = await ask("api/log?container=" + encodeURIComponent(mine.id) + (mine.cursor ? "&from=" + encodeURIComponent(mine.cursor) : ""));
      if (log !== mine) return;
      mine.cursor = got.cursor;
      addLines(got);
      $("log-status").textContent = mine.lines ? "" : "no line so far";
      if (got.more) pause = 50;
    } catch (e) {
      if (e !== null) $("log-status").textContent = "cannot read the log: " + e.message;
    }
    await new Promise((done) => setTimeout(done, pause));
  }
}

function addLines(got) {
  const box = $("log-lines");
  const fresh = got.lines.map((l) => {
    const line = document.createElement("div");
    if (l.error) line.className = "bad";
    const time = document.createElement("time");
    time.textContent = new Date(l.time).toLocaleTimeString();
    line.append(time, document.createTextNode(l.text));
    return line;
  });
  if (got.again) {
    const mark = document.createElement("div");
    mark.textContent = "--- the log begins again ---";
    fresh.unshift(mark);
  }
  log.lines += fresh.length;
  box.append(...fresh);
  while (box.childElementCount > shownLines) box.firstElementChild.remove();
  if ($("log-follow").checked && fresh.length) box.scrollTop = box.scrollHeight;
}

// --- the page

let failures = 0;
let turn = 0;
let haveImages = false;
let looping = false;
let wake = () => {}; // ends the pause of the loop

function say(text, kind) {
  const status = $("status");
  if (status.textContent !== text) status.textContent = text;
  status.className = kind;
}

// showNotices says what a person at the node must know. A screen reader says it again only when it changes.
function showNotices() {
  const notices = state.notices || [];
  if ([...$("notices").children].map((p) => p.textContent).join("\n") === notices.join("\n")) return;
  $("notices").replaceChildren(...notices.map((text) => {
    const p = document.createElement("p");
    p.className = "notice";
    p.textContent = text;
    return p;
  }));
}

async function refresh() {
  state = await ask("api/state");
  document.title = "berth - " + state.node;
  $("node").textContent = state.node;
  $("about").textContent = "version " + state.version + ", instance " + state.instance;
  $("ask").hidden = true;
  $("main").hidden = false;
  showNotices();
  showPods();
  showJobs();
  showStages();
  say(failures > 1 ? "the daemon answers again" : "live, read every 2 seconds", "good");
  failures = 0;
}

// part reads one of the other parts of the page, and returns whether it could. A part that cannot be read says so in its own
// place: the rest is new.
async function part(read, place) {
  try {
    await read();
    return true;
  } catch (e) {
    if (e instanceof Refused) throw e;
    $(place).textContent = "cannot be read now: " + e.message;
    return false;
  }
}

// turnOnce reads all parts once, and returns how long to wait for the next time; -1 is until somebody gives the token.
async function turnOnce() {
  // Only a daemon that hangs takes longer than this.
  const slow = setTimeout(() => say("waiting for the daemon, which has not answered so far" + (state ? "; what is shown is old" : ""), "bad"), 4000);
  try {
    await refresh();
    clearTimeout(slow);
    await part(readEvents, "events-status");
    if (turn % 5 === 0 || !haveImages) haveImages = await part(readImages, "images-count");
    await part(readFindings, "doctor-status");
    turn++;
    return 2000;
  } catch (e) {
    if (e instanceof Refused) {
      say(e.message, e.wrong ? "bad" : "");
      $("main").hidden = true;
      $("ask").hidden = false;
      $("token").focus();
      return -1;
    }
    failures++;
    examining = true; // a daemon that comes back has no result of the former one
    say("the daemon does not answer (" + e.message + ")" + (state ? "; what is shown is old" : "") + "; trying again", "bad");
    return Math.min(1000 * failures, 3000); // a restart takes a moment
  } finally {
    clearTimeout(slow);
  }
}

async function loop() {
  if (looping) return;
  looping = true;
  for (let pause = 0; pause >= 0;) {
    pause = document.hidden ? 2000 : await turnOnce();
    if (pause > 0) {
      await new Promise((done) => {
        const timer = setTimeout(done, pause);
        wake = () => { clearTimeout(timer); done(); };
      });
    }
  }
  looping = false;
}

function begin() {
  takeToken();
  $("ask").addEventListener("submit", (e) => {
    e.preventDefault();
    const token = $("token").value.trim();
    if (token) sessionStorage.setItem(tokenKey, token);
    else sessionStorage.removeItem(tokenKey);
    $("token").value = "";
    loop();
  });
  $("filter").addEventListener("input", () => state && showPods());
  $("all").addEventListener("change", () => state && showPods());
  for (const button of document.querySelectorAll("[data-sort]")) {
    button.addEventListener("click", () => {
      const by = button.dataset.sort;
      order.down = order.by === by ? !order.down : by !== "name" && by !== "state";
      order.by = by;
      showOrder();
      if (state) showPods();
    });
  }
  $("log-close").addEventListener("click", () => $("log").close());
  $("log").addEventListener("close", () => { log = null; $("log-lines").replaceChildren(); });
  $("log-times").addEventListener("change", () => $("log-lines").classList.toggle("times", $("log-times").checked));
  $("log-lines").addEventListener("scroll", () => {
    const box = $("log-lines");
    if (box.scrollHeight - box.scrollTop - box.clientHeight > 40) $("log-follow").checked = false;
  });
  $("examine").addEventListener("click", () => {
    $("examine").disabled = examining = true; // until an answer says otherwise
    part(() => readFindings(true), "doctor-status").catch(wake); // the loop asks for the token
  });
  window.addEventListener("hashchange", () => { takeToken(); loop(); });
  // A browser slows down the timers of tabs that nobody sees.
  document.addEventListener("visibilitychange", () => { if (!document.hidden) wake(); });
  window.addEventListener("online", () => wake());
  showOrder();
  say("connecting", "");
  loop();
}

begin();
