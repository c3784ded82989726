// In: strokes or a picture. Out: the server's answer on the page.
//
// The sheet holds strokes or a picture. Every change makes a new question, of a sheet and a model. `askNewest` sends the
// newest question; a single request is under way at a time. `refreshModels` asks for the models every few seconds, so the
// page notices when the server goes and when it comes back.

const DEBOUNCE_MS = 120;
const TIMEOUT_MS = 15000; // longer than this page's server waits for Triton
const REFRESH_MS = 5000; // between two requests for the models
const RETRY_MS = 1500; // after a request without an answer
const HISTORY = 100; // states of the sheet that undo can reach
const PEN = 0.07; // width of a stroke; lengths on the sheet are shares of its side
const BARS = 10; // classes that get a bar; of more classes the most probable
const SENT_SIDE = 280; // pixels of the image that is sent
const COPY_SIDE = 1024; // pixels of the longer side of a picture on the sheet

const byId = (id) => document.getElementById(id);
const paper = byId("paper");

class Trouble extends Error {} // temporary: no server, no model, too many requests
class Refusal extends Error {} // the picture cannot be read

// The sheet

const EMPTY = { strokes: [], picture: null };
let history = [EMPTY];
let pen = null; // the stroke being drawn, with the pointer that draws it
let paintScheduled = false;

const current = () => history[history.length - 1];
const isForPhotos = () => document.body.classList.contains("photos");
const visible = (sheet) => (isForPhotos() && sheet.picture === null ? EMPTY : sheet); // strokes are no photo
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
  showNote("");
  byId("undo").setAttribute("aria-disabled", history.length === 1);
  byId("clear").setAttribute("aria-disabled", isEmpty(current()));
  paint();
  scheduleQuestion(delay_ms);
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
  if (pen || event.button !== 0 || isForPhotos()) return;
  event.preventDefault();
  paper.setPointerCapture(event.pointerId);
  pen = { pointer: event.pointerId, points: [pointOf(event)] };
  paint();
}

function continueStroke(event) {
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

function cancelStroke(event) {
  if (event.pointerId !== pen?.pointer) return;
  pen = null;
  paint();
}

function paint() {
  if (paintScheduled) return;
  paintScheduled = true;
  requestAnimationFrame(() => {
    paintScheduled = false;
    const side = Math.round(paper.clientWidth * devicePixelRatio);
    if (paper.width !== side) paper.width = paper.height = side;
    const context = paper.getContext("2d");
    context.clearRect(0, 0, side, side);
    const { strokes, picture } = visible(current());
    if (picture && !pen) paintPicture(context, picture, side);
    const ink = getComputedStyle(paper).getPropertyValue("--ink");
    for (const points of pen ? [...strokes, pen.points] : strokes) paintStroke(context, points, side, ink);
    byId("invitation").textContent = isForPhotos() ? "Upload a picture" : "Draw here";
    byId("invitation").hidden = pen !== null || !isEmpty(visible(current()));
  });
}

function paintStroke(context, points, side, ink) {
  const scaled = points.map(({ x, y, width }) => ({ x: x * side, y: y * side, width: width * side }));
  context.strokeStyle = context.fillStyle = ink;
  context.lineCap = "round";
  let from = scaled[0];
  context.beginPath();
  context.arc(from.x, from.y, from.width / 2, 0, 2 * Math.PI); // a line without length would be invisible
  context.fill();
  for (const [index, point] of scaled.entries()) {
    // A curve from the middle of a pair of points to the middle of the next pair, bent towards the point they share.
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

async function receiveFile(file) {
  if (!file) return;
  const refusal = refusalOf(file);
  if (refusal) return showNote(`${file.name}: ${refusal}`);
  const shown = await smallCopy(file);
  change({ strokes: [], picture: { file, name: file.name, shown, paper: shown && paperColour(shown) } });
}

function refusalOf({ type, size }) {
  if (accepted === null) return null; // not yet known; the server refuses other files itself
  if (!accepted.types.includes(type)) return `expected ${typeNames(accepted.types)}, found ${type || "no picture"}`;
  if (size > accepted.bytes) return `expected at most ${megabytes(accepted.bytes)}, found ${megabytes(size)}`;
  return null;
}

function showNote(text) {
  byId("note").textContent = text;
  byId("note").hidden = text === "";
}

async function smallCopy(file) {
  const bitmap = await createImageBitmap(file).catch(() => null); // the server may be able to read it
  if (!bitmap) return null;
  const scale = Math.min(1, COPY_SIDE / Math.max(bitmap.width, bitmap.height));
  const copy = document.createElement("canvas");
  copy.width = Math.max(1, Math.round(bitmap.width * scale));
  copy.height = Math.max(1, Math.round(bitmap.height * scale));
  copy.getContext("2d").drawImage(bitmap, 0, 0, copy.width, copy.height);
  bitmap.close();
  return copy;
}

// Like the server, the sheet shows a transparent picture on white paper, or on black where its ink is light.

function paperColour(copy) {
  const { data } = copy.getContext("2d").getImageData(0, 0, copy.width, copy.height);
  let [light, weight, opaque] = [0, 0, true];
  for (let byte = 0; byte < data.length; byte += 4) {
    const alpha = data[byte + 3];
    light += alpha * (0.299 * data[byte] + 0.587 * data[byte + 1] + 0.114 * data[byte + 2]);
    weight += alpha;
    opaque = opaque && alpha === 255;
  }
  if (opaque) return null;
  return light > 128 * weight ? "#000" : "#fff";
}

const megabytes = (bytes) => `${(bytes / 1e6).toFixed(1)} MB`;
const typeNames = (types) => types.map((type) => type.replace("image/", "").toUpperCase()).join(", ");

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

let accepted = null; // the accepted types and size of files; null until the server has answered
let newest = { sheet: EMPTY, model: "" }; // the newest question
let answered = newest; // the question whose answer is shown
let isAsking = false;
let questionTimer = 0;

function scheduleQuestion(delay_ms) {
  clearTimeout(questionTimer);
  questionTimer = setTimeout(() => {
    newest = { sheet: visible(current()), model: byId("model").value };
    askNewest();
  }, delay_ms);
}

async function askNewest() {
  if (isAsking) return;
  isAsking = true;
  try {
    while (newest !== answered) {
      const question = newest;
      const show = await answerTo(question);
      if (question !== newest) continue;
      show();
      answered = question;
    }
  } catch (error) {
    if (!(error instanceof Trouble)) throw error;
    if (byId("answer").classList.contains("nothing")) showNothing("Waiting for the server");
    showTrouble(error.message);
    refreshAfter(RETRY_MS);
  } finally {
    isAsking = false;
  }
}

// Returns a function that shows the answer.

async function answerTo({ sheet, model }) {
  if (isEmpty(sheet)) return () => showNothing(isForPhotos() ? "No picture yet" : "Nothing drawn yet");
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
    reply = await fetch(path, { ...options, signal: AbortSignal.timeout(TIMEOUT_MS) });
    content = await reply.json();
  } catch (error) {
    throw new Trouble(`${location.host}: ${error.message}`);
  }
  if (reply.ok) return content;
  const isRefusal = [400, 413, 415, 422].includes(reply.status);
  throw new (isRefusal ? Refusal : Trouble)(content.error);
}

// The answer

function showAnswer(answer, roundTrip_ms) {
  const crowd = answer.shapes > 1 ? `, ${answer.shapes} separate shapes read as one digit` : "";
  const digits = answer.labels.every((label) => /^[0-9]$/.test(label));
  const verdict = !answer.rejected ? answer.label : digits ? "not a digit" : "none of these";
  const nearest = answer.rejected ? `most like ${answer.label}, ` : "";
  const share = nearest + percent(answer.probability) + crowd;
  showNote((answer.notes ?? []).join("; "));
  byId("answer").classList.remove("nothing");
  byId("digit").textContent = verdict;
  byId("digit").classList.toggle("words", verdict.length > 2);
  byId("remark").textContent = share;
  byId("spoken").textContent = `${verdict}, ${answer.rejected ? "" : "with "}${share}, says ${answer.model}`;
  showBars(mostProbable(answer));
  const count = answer.labels.length;
  byId("classes").textContent = count > BARS ? `The ${BARS} most probable of ${count.toLocaleString("en")} classes` : "";
  showSeen(answer.image);
  byId("seen").setAttribute("aria-label", `What the model saw: ${answer.image.length} rows of pixels`);
  byId("model-version").textContent = `${answer.model}, version ${answer.version}`;
  byId("inference").textContent = milliseconds(answer.inference_ms);
  byId("preparation").textContent = milliseconds(answer.preparation_ms);
  byId("round-trip").textContent = milliseconds(roundTrip_ms);
  showTrouble(null);
}

function showNothing(remark) {
  byId("answer").classList.add("nothing");
  byId("answer").classList.remove("stale");
  byId("digit").textContent = "?";
  byId("digit").classList.remove("words");
  byId("remark").textContent = remark;
  byId("spoken").textContent = remark;
  const labels = chosenModel()?.labels ?? [];
  showBars(labels.length > BARS ? [] : labels.map((label) => ({ label, share: null })));
  byId("classes").textContent = "";
  showSeen(null);
  byId("seen").setAttribute("aria-label", "What the model saw: nothing yet");
  for (const id of ["model-version", "inference", "preparation", "round-trip"]) byId(id).textContent = "–";
}

const percent = (share) => `${(100 * share).toFixed(1)} %`;
const milliseconds = (ms) => `${ms.toFixed(1)} ms`;

function mostProbable({ labels, probabilities }) {
  const classes = labels.map((label, index) => ({ label, share: probabilities[index] }));
  return classes.length > BARS ? classes.sort((one, other) => other.share - one.share).slice(0, BARS) : classes;
}

// A share is null before there is an answer.

function showBars(classes) {
  const bars = byId("bars");
  while (bars.children.length > classes.length) bars.lastChild.remove();
  while (bars.children.length < classes.length) bars.append(newBar());
  const largest = Math.max(...classes.map(({ share }) => share));
  for (const [index, { label, share }] of classes.entries()) {
    const row = bars.children[index];
    row.classList.toggle("best", share === largest);
    row.querySelector(".label").textContent = label;
    row.querySelector(".fill").style.transform = `translateX(${100 * share - 100}%)`;
    row.querySelector(".share").textContent = share === null ? "–" : percent(share);
  }
}

function newBar() {
  const row = document.createElement("li");
  const track = div("track");
  track.append(div("fill"));
  row.append(div("label"), track, div("share"));
  return row;
}

function div(className) {
  const element = document.createElement("div");
  element.className = className;
  return element;
}

function showSeen(rows) {
  const canvas = byId("seen");
  const context = canvas.getContext("2d");
  if (!rows) return context.clearRect(0, 0, canvas.width, canvas.height);
  [canvas.width, canvas.height] = [rows[0].length, rows.length];
  const pixels = rows.flat().flatMap((level) => (Array.isArray(level) ? [...level, 255] : [level, level, level, 255]));
  return context.putImageData(new ImageData(Uint8ClampedArray.from(pixels), canvas.width), 0, 0);
}

// The server

let models = []; // as the server last named them
const chosenModel = () => models.find(({ name }) => name === byId("model").value);
let isRefreshing = false;
let refreshTimer = 0;

async function refreshModels() {
  if (isRefreshing) return;
  isRefreshing = true;
  let isAnswered = false;
  try {
    const answer = await call("api/models");
    ({ models, accepts: accepted } = answer);
    byId("file").accept = accepted.types.join(",");
    listModels(answer.preferred);
    showLeftOut(answer.left_out ?? []);
    if (newest === answered) showTrouble(null);
    askNewest();
    isAnswered = true;
  } catch (error) {
    if (!(error instanceof Trouble)) throw error;
    showTrouble(error.message);
  } finally {
    isRefreshing = false;
    refreshAfter(isAnswered ? REFRESH_MS : RETRY_MS);
  }
}

function refreshAfter(delay_ms) {
  clearTimeout(refreshTimer);
  if (!document.hidden) refreshTimer = setTimeout(refreshModels, delay_ms);
}

function showLeftOut(leftOut) {
  const text = leftOut.map(({ name, reason }) => `${name}: ${reason}`).join("; ");
  byId("left-out").hidden = text === "";
  if (byId("left-out").textContent !== text) byId("left-out").textContent = text;
}

// Models of photos take no strokes.

function modelChanged() {
  document.body.classList.toggle("photos", chosenModel()?.preprocessing === "photo");
  paint();
  scheduleQuestion(0);
}

function listModels(preferred) {
  const select = byId("model");
  const texts = models.map(({ name, test_accuracy: accuracy }) =>
    accuracy === null ? name : `${name} · ${percent(accuracy)} of test images`,
  );
  if (texts.join("\n") === [...select.options].map((option) => option.text).join("\n")) return;
  const before = select.value;
  select.replaceChildren(...models.map(({ name }, index) => new Option(texts[index], name)));
  select.value = models.some(({ name }) => name === before) ? before : preferred;
  if (select.value !== before) modelChanged();
}

function showTrouble(reason) {
  byId("answer").classList.toggle("stale", reason !== null && !isEmpty(current()));
  byId("trouble").hidden = reason === null;
  if (byId("reason").textContent !== (reason ?? "")) byId("reason").textContent = reason ?? "";
}

// The controls

paper.addEventListener("pointerdown", startStroke);
paper.addEventListener("pointermove", continueStroke);
paper.addEventListener("pointerup", endStroke);
paper.addEventListener("pointercancel", cancelStroke);
paper.addEventListener("lostpointercapture", cancelStroke);

byId("undo").addEventListener("click", undo);
byId("clear").addEventListener("click", clear);
byId("model").addEventListener("change", modelChanged);
byId("upload").addEventListener("click", () => byId("file").click());
byId("file").addEventListener("change", ({ target }) => {
  receiveFile(target.files[0]);
  target.value = ""; // else choosing the same file again is no change for the browser
});

document.addEventListener("keydown", (event) => {
  if ((event.ctrlKey || event.metaKey) && !event.shiftKey && !event.altKey && event.key.toLowerCase() === "z") {
    event.preventDefault();
    undo();
  }
});
document.addEventListener("paste", ({ clipboardData }) => receiveFile(clipboardData.files[0]));

const sheet = byId("sheet");
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
  receiveFile(event.dataTransfer.files[0]);
});

matchMedia("(prefers-color-scheme: dark)").addEventListener("change", paint);
new ResizeObserver(paint).observe(paper);
document.addEventListener("visibilitychange", () => (document.hidden ? clearTimeout(refreshTimer) : refreshModels()));

showNothing("Nothing drawn yet");
changed(0);
refreshModels();
