// Strokes or a picture in, the server's answer out.
//
// The sheet is a list of strokes or one picture; every change makes a new question. `settle` asks the newest, one request
// at a time. `look` asks for the models every few seconds, and so notices when the server goes and comes back.

const DEBOUNCE_MS = 120;
const PATIENCE_MS = 15000; // longer than this page's server waits for Triton
const CALM_MS = 5000; // between two looks at the server
const TROUBLED_MS = 1500;
const HISTORY = 100; // states of the sheet
const PEN = 0.07; // width of a stroke; lengths on the sheet are shares of its side
const SENT_SIDE = 280; // pixels
const KEPT_SIDE = 1024; // pixels of the longer side of a picture on the sheet

const at = (id) => document.getElementById(id);
const paper = at("paper");

class Trouble extends Error {} // may pass: no server, no model, too many requests
class Refusal extends Error {} // the picture's fault

// The sheet

const EMPTY = { strokes: [], picture: null };
let history = [EMPTY];
let pen = null; // the stroke being drawn, with the pointer that draws it
let painting = false;

const current = () => history[history.length - 1];
const ofPhotos = () => document.body.classList.contains("photos");
const shownOf = (sheet) => (ofPhotos() && sheet.picture === null ? EMPTY : sheet); // strokes are no photo
const isEmpty = (sheet) => sheet.strokes.length === 0 && sheet.picture === null;

function change(sheet) {
  history = [...history, sheet].slice(-HISTORY);
  changed(DEBOUNCE_MS);
}

function undo() {
  if (history.length > 1) {
    history.pop();
    changed(0);
  }
}

function clear() {
  if (!isEmpty(current())) change(EMPTY);
}

function changed(delay_ms) {
  note("");
  at("undo").setAttribute("aria-disabled", history.length === 1);
  at("clear").setAttribute("aria-disabled", isEmpty(current()));
  paint();
  pose(delay_ms);
}

function pointOf(event) {
  const box = paper.getBoundingClientRect();
  const pressed = event.pointerType === "pen" && event.pressure > 0;
  return {
    x: (event.clientX - box.left) / box.width,
    y: (event.clientY - box.top) / box.height,
    width: pressed ? PEN * (0.5 + event.pressure) : PEN,
  };
}

function startStroke(event) {
  if (pen || event.button !== 0 || ofPhotos()) return;
  event.preventDefault();
  paper.setPointerCapture(event.pointerId);
  pen = { pointer: event.pointerId, points: [pointOf(event)] };
  paint();
}

function goOn(event) {
  if (event.pointerId !== pen?.pointer) return;
  const events = event.getCoalescedEvents?.() ?? [];
  pen.points.push(...(events.length ? events : [event]).map(pointOf));
  paint();
}

function endStroke(event) {
  if (event.pointerId !== pen?.pointer) return;
  const points = pen.points;
  pen = null;
  change({ strokes: [...current().strokes, points], picture: null });
}

function dropStroke(event) {
  if (event.pointerId !== pen?.pointer) return;
  pen = null;
  paint();
}

function paint() {
  if (painting) return;
  painting = true;
  requestAnimationFrame(() => {
    painting = false;
    const side = Math.round(paper.clientWidth * devicePixelRatio);
    if (paper.width !== side) paper.width = paper.height = side;
    const context = paper.getContext("2d");
    context.clearRect(0, 0, side, side);
    const { strokes, picture } = shownOf(current());
    if (picture && !pen) paintPicture(context, picture, side);
    const ink = getComputedStyle(paper).getPropertyValue("--ink");
    for (const points of pen ? [...strokes, pen.points] : strokes) paintStroke(context, points, side, ink);
    at("invitation").textContent = ofPhotos() ? "Upload a picture" : "Draw here";
    at("invitation").hidden = pen !== null || !isEmpty(shownOf(current()));
  });
}

function paintStroke(context, points, side, ink) {
  const scaled = points.map(({ x, y, width }) => ({ x: x * side, y: y * side, width: width * side }));
  context.strokeStyle = context.fillStyle = ink;
  context.lineCap = "round";
  let from = scaled[0];
  context.beginPath();
  context.arc(from.x, from.y, from.width / 2, 0, 2 * Math.PI); // a line of no length is invisible
  context.fill();
  for (const [index, point] of scaled.entries()) {
    // From the middle of a pair of points to the middle of the next pair, bent towards the point between them.
    const next = scaled[index + 1] ?? point;
    const to = { x: (point.x + next.x) / 2, y: (point.y + next.y) / 2 };
    context.lineWidth = point.width;
    context.beginPath();
    context.moveTo(from.x, from.y);
    context.quadraticCurveTo(point.x, point.y, to.x, to.y);
    context.stroke();
    from = to;
  }
}

function paintPicture(context, { shown, paper: ground, name }, side) {
  if (shown) {
    const scale = side / Math.max(shown.width, shown.height);
    const [width, height] = [shown.width * scale, shown.height * scale];
    const place = [(side - width) / 2, (side - height) / 2, width, height];
    if (ground) {
      context.fillStyle = ground;
      context.fillRect(...place);
    }
    context.drawImage(shown, ...place);
    return;
  }
  context.fillStyle = getComputedStyle(paper).color;
  context.font = `${side / 24}px system-ui, sans-serif`;
  context.textAlign = "center";
  context.fillText(name, side / 2, side / 2, 0.9 * side);
}

async function receive(file) {
  if (!file) return;
  const refusal = refusalOf(file);
  if (refusal) return note(`${file.name}: ${refusal}`);
  const shown = await smallCopy(file);
  change({ strokes: [], picture: { file, name: file.name, shown, paper: shown && paperOf(shown) } });
}

function refusalOf({ type, size }) {
  if (accepted === null) return null; // the server has not told them yet, and refuses other files itself
  if (!accepted.types.includes(type)) return `expected ${listed(accepted.types)}, found ${type || "no picture"}`;
  if (size > accepted.bytes) return `expected at most ${megabytes(accepted.bytes)}, found ${megabytes(size)}`;
  return null;
}

function note(text) {
  at("note").textContent = text;
  at("note").hidden = text === "";
}

async function smallCopy(file) {
  const bitmap = await createImageBitmap(file).catch(() => null); // the server may read it
  if (!bitmap) return null;
  const scale = Math.min(1, KEPT_SIDE / Math.max(bitmap.width, bitmap.height));
  const copy = document.createElement("canvas");
  copy.width = Math.max(1, Math.round(bitmap.width * scale));
  copy.height = Math.max(1, Math.round(bitmap.height * scale));
  copy.getContext("2d").drawImage(bitmap, 0, 0, copy.width, copy.height);
  bitmap.close();
  return copy;
}

// Like the server, the sheet shows a transparent picture on white paper, or on black where its ink is light.

function paperOf(copy) {
  const { data } = copy.getContext("2d").getImageData(0, 0, copy.width, copy.height);
  let [light, weight, opaque] = [0, 0, true];
  for (let at = 0; at < data.length; at += 4) {
    const alpha = data[at + 3];
    light += alpha * (0.299 * data[at] + 0.587 * data[at + 1] + 0.114 * data[at + 2]);
    weight += alpha;
    opaque = opaque && alpha === 255;
  }
  if (opaque) return null;
  return light > 128 * weight ? "#000" : "#fff";
}

const megabytes = (bytes) => `${(bytes / 1e6).toFixed(1)} MB`;
const listed = (types) => types.map((type) => type.replace("image/", "").toUpperCase()).join(", ");

// Sends the unchanged file, or the strokes in black on white, whatever the colours of the screen.

function encoded({ strokes, picture }) {
  if (picture) return picture.file;
  const canvas = document.createElement("canvas");
  canvas.width = canvas.height = SENT_SIDE;
  const context = canvas.getContext("2d");
  context.fillStyle = "#fff";
  context.fillRect(0, 0, SENT_SIDE, SENT_SIDE);
  for (const points of strokes) paintStroke(context, points, SENT_SIDE, "#000");
  const base64 = canvas.toDataURL("image/png").split(",")[1]; // toBlob may wait a second
  return new Blob([Uint8Array.from(atob(base64), (byte) => byte.charCodeAt(0))], { type: "image/png" });
}

// The question

let accepted = null; // the types and bytes of files, once the server has said
let question = { sheet: EMPTY, model: "" };
let settled = question; // the answered question
let asking = false;
let posing = 0;

function pose(delay_ms) {
  clearTimeout(posing);
  posing = setTimeout(() => {
    question = { sheet: shownOf(current()), model: at("model").value };
    settle();
  }, delay_ms);
}

async function settle() {
  if (asking) return;
  asking = true;
  try {
    while (question !== settled) {
      const asked = question;
      const show = await answerTo(asked);
      if (asked !== question) continue;
      show();
      settled = asked;
    }
  } catch (error) {
    if (!(error instanceof Trouble)) throw error;
    if (at("answer").classList.contains("nothing")) showNothing("Waiting for the server");
    report(error.message);
    lookAfter(TROUBLED_MS);
  } finally {
    asking = false;
  }
}

async function answerTo({ sheet, model }) {
  if (isEmpty(sheet)) return () => showNothing(ofPhotos() ? "No picture yet" : "Nothing drawn yet");
  const body = encoded(sheet);
  const start_ms = performance.now();
  try {
    const answer = await call(`api/classify?model=${encodeURIComponent(model)}`, {
      method: "POST",
      headers: { "Content-Type": body.type },
      body,
    });
    const roundTrip_ms = performance.now() - start_ms;
    return () => showAnswer(answer, roundTrip_ms);
  } catch (error) {
    if (!(error instanceof Refusal)) throw error;
    return () => showNothing(error.message);
  }
}

async function call(path, options = {}) {
  let reply, content;
  try {
    reply = await fetch(path, { ...options, signal: AbortSignal.timeout(PATIENCE_MS) });
    content = await reply.json();
  } catch (error) {
    throw new Trouble(`${location.host}: ${error.message}`);
  }
  if (reply.ok) return content;
  const ofThePicture = [400, 413, 415, 422].includes(reply.status);
  throw new (ofThePicture ? Refusal : Trouble)(content.error);
}

// The answer

function showAnswer(answer, roundTrip_ms) {
  const crowd = answer.shapes > 1 ? `, ${answer.shapes} separate shapes read as one digit` : "";
  const digits = answer.labels.every((label) => /^[0-9]$/.test(label));
  const verdict = !answer.rejected ? answer.label : digits ? "not a digit" : "none of these";
  const nearest = answer.rejected ? `most like ${answer.label}, ` : "";
  const share = nearest + percent(answer.probability) + crowd;
  note((answer.notes ?? []).join("; "));
  at("answer").classList.remove("nothing");
  at("digit").textContent = verdict;
  at("digit").classList.toggle("words", verdict.length > 2);
  at("remark").textContent = share;
  at("spoken").textContent = `${verdict}, ${answer.rejected ? "" : "with "}${share}, says ${answer.model}`;
  showBars(answer.labels, answer.probabilities);
  showSeen(answer.image);
  at("seen").setAttribute("aria-label", `What the model saw: ${answer.image.length} rows of pixels`);
  at("model-version").textContent = `${answer.model}, version ${answer.version}`;
  at("inference").textContent = milliseconds(answer.inference_ms);
  at("preparation").textContent = milliseconds(answer.preparation_ms);
  at("round-trip").textContent = milliseconds(roundTrip_ms);
  report(null);
}

function showNothing(remark) {
  at("answer").classList.add("nothing");
  at("answer").classList.remove("stale");
  at("digit").textContent = "?";
  at("digit").classList.remove("words");
  at("remark").textContent = remark;
  at("spoken").textContent = remark;
  const labels = [...at("bars").children].map((row) => row.querySelector(".label").textContent);
  showBars(labels, labels.map(() => 0));
  showSeen(null);
  at("seen").setAttribute("aria-label", "What the model saw: nothing yet");
  for (const id of ["model-version", "inference", "preparation", "round-trip"]) at(id).textContent = "–";
}

const percent = (share) => `${(100 * share).toFixed(1)} %`;
const milliseconds = (ms) => `${ms.toFixed(1)} ms`;

function showBars(labels, probabilities) {
  const bars = at("bars");
  while (bars.children.length > labels.length) bars.lastChild.remove();
  while (bars.children.length < labels.length) bars.append(newBar());
  const most = Math.max(...probabilities);
  for (const [index, row] of [...bars.children].entries()) {
    const share = probabilities[index];
    row.classList.toggle("best", share === most && most > 0);
    row.querySelector(".label").textContent = labels[index];
    row.querySelector(".fill").style.transform = `translateX(${100 * share - 100}%)`;
    row.querySelector(".share").textContent = most > 0 ? percent(share) : "–";
  }
}

function newBar() {
  const row = document.createElement("li");
  const track = element("track");
  track.append(element("fill"));
  row.append(element("label"), track, element("share"));
  return row;
}

function element(name) {
  const made = document.createElement("div");
  made.className = name;
  return made;
}

function showSeen(rows) {
  const canvas = at("seen");
  const context = canvas.getContext("2d");
  if (!rows) return context.clearRect(0, 0, canvas.width, canvas.height);
  [canvas.width, canvas.height] = [rows[0].length, rows.length];
  const pixels = rows.flat().flatMap((level) => (Array.isArray(level) ? [...level, 255] : [level, level, level, 255]));
  return context.putImageData(new ImageData(Uint8ClampedArray.from(pixels), canvas.width), 0, 0);
}

// The server

let photos = new Set(); // names of the models of photos
let looking = false;
let nextLook = 0;

async function look() {
  if (looking) return;
  looking = true;
  let calm = false;
  try {
    const { models, preferred, left_out: leftOut = [], accepts } = await call("api/models");
    accepted = accepts;
    at("file").accept = accepts.types.join(",");
    offer(models, preferred);
    tell(leftOut);
    if (question === settled) report(null);
    settle();
    calm = true;
  } catch (error) {
    if (!(error instanceof Trouble)) throw error;
    report(error.message);
  } finally {
    looking = false;
    lookAfter(calm ? CALM_MS : TROUBLED_MS);
  }
}

function lookAfter(delay_ms) {
  clearTimeout(nextLook);
  if (!document.hidden) nextLook = setTimeout(look, delay_ms);
}

function tell(leftOut) {
  const text = leftOut.map(({ name, reason }) => `${name}: ${reason}`).join("; ");
  at("left-out").hidden = text === "";
  if (at("left-out").textContent !== text) at("left-out").textContent = text;
}

// Models of photos take no strokes.

function chosen() {
  document.body.classList.toggle("photos", photos.has(at("model").value));
  paint();
  pose(0);
}

function offer(models, preferred) {
  photos = new Set(models.filter(({ preprocessing }) => preprocessing === "photo").map(({ name }) => name));
  const select = at("model");
  const texts = models.map(({ name, test_accuracy: accuracy }) =>
    accuracy === null ? name : `${name} · ${percent(accuracy)} of test images`,
  );
  if (texts.join("\n") === [...select.options].map((option) => option.text).join("\n")) return;
  const before = select.value;
  select.replaceChildren(...models.map(({ name }, index) => new Option(texts[index], name)));
  select.value = models.some(({ name }) => name === before) ? before : preferred;
  if (at("bars").children.length === 0) {
    const { labels } = models.find(({ name }) => name === select.value);
    showBars(labels, labels.map(() => 0));
  }
  if (select.value !== before) chosen();
}

function report(reason) {
  at("answer").classList.toggle("stale", reason !== null && !isEmpty(current()));
  at("trouble").hidden = reason === null;
  if (at("reason").textContent !== (reason ?? "")) at("reason").textContent = reason ?? "";
}

// The controls

paper.addEventListener("pointerdown", startStroke);
paper.addEventListener("pointermove", goOn);
paper.addEventListener("pointerup", endStroke);
paper.addEventListener("pointercancel", dropStroke);
paper.addEventListener("lostpointercapture", dropStroke);

at("undo").addEventListener("click", undo);
at("clear").addEventListener("click", clear);
at("model").addEventListener("change", chosen);
at("upload").addEventListener("click", () => at("file").click());
at("file").addEventListener("change", ({ target }) => {
  receive(target.files[0]);
  target.value = ""; // else the browser tells nothing when the same file is chosen again
});

document.addEventListener("keydown", (event) => {
  if ((event.ctrlKey || event.metaKey) && !event.shiftKey && !event.altKey && event.key.toLowerCase() === "z") {
    event.preventDefault();
    undo();
  }
});
document.addEventListener("paste", ({ clipboardData }) => receive(clipboardData.files[0]));

const sheet = at("sheet");
document.addEventListener("dragover", (event) => {
  event.preventDefault(); // otherwise the browser opens the picture instead of the page
  sheet.classList.add("dropping");
});
document.addEventListener("dragleave", ({ relatedTarget }) => {
  if (relatedTarget === null) sheet.classList.remove("dropping");
});
document.addEventListener("drop", (event) => {
  event.preventDefault();
  sheet.classList.remove("dropping");
  receive(event.dataTransfer.files[0]);
});

matchMedia("(prefers-color-scheme: dark)").addEventListener("change", paint);
new ResizeObserver(paint).observe(paper);
document.addEventListener("visibilitychange", () => (document.hidden ? clearTimeout(nextLook) : look()));

showNothing("Nothing drawn yet");
changed(0);
look();
