// Brings together the gateway's data and the page's parts.

import { ActivityPanel } from "./activity-panel.js";
import { BlockStore } from "./block-store.js";
import { Owners } from "./colours.js";
import { Connection } from "./connection.js";
import { byId, setText } from "./dom.js";
import { percent } from "./format.js";
import { History } from "./history.js";
import { LifePanel } from "./life-panel.js";
import { MapPanel } from "./map-panel.js";
import { OwnRate } from "./own-rate.js";
import { RequestsPanel } from "./requests-panel.js";
import { Session } from "./session.js";
import { StateLine } from "./state-line.js";
import { Theme } from "./theme.js";
import { showOwnTiles, showTiles } from "./tiles.js";
import { TreePanel } from "./tree-panel.js";
import { WastePanel } from "./waste-panel.js";

const REQUESTS_MS = 1500;
const LIFE_MS = 1000;
const TREE_MS = 5000;

const theme = new Theme();
const session = new Session();
const connection = new Connection(session);
const stateLine = new StateLine(session);
const store = new BlockStore();
const owners = new Owners();
const rows = new History();
let ownRate = new OwnRate();
/** The newest prefix tree. */
let prefixes = { nodes: [], scopes: [], leftOut: 0 };

/** What the gateway's clock is ahead of this one. */
let clockOffset = 0;
const now = () => Date.now() + clockOffset;

// Nothing of one viewer's stays for the next.
session.onchange = () => (stateLine.tenant === undefined ? connection.restart() : location.reload());

const map = new MapPanel(store, owners, theme);
const waste = new WastePanel(store);
const activity = new ActivityPanel(rows, theme);
const requests = new RequestsPanel(owners, now);
const life = new LifePanel(now, (tenant, id) => {
  map.highlightRequest(tenant, id);
  byId("memory").scrollIntoView();
});
const tree = new TreePanel(owners);

/** Draws at most once a frame, whatever comes. */
function onFrame(draw) {
  let asked = false;
  return () => {
    if (asked) return;
    asked = true;
    requestAnimationFrame(() => {
      asked = false;
      draw();
    });
  };
}

const drawMemory = onFrame(() => {
  map.update();
  drawWaste();
});

function drawWaste() {
  const share = waste.update();
  if (share === undefined) return;
  setText(byId("tile-waste"), percent(share));
}

connection.stream("status", {
  opened: () => {
    rows.clear();
    ownRate = new OwnRate();
  },
  event: (name, message) => {
    const { status } = message;
    const first = stateLine.status === null;
    rows.add(message.samples);
    clockOffset = Date.parse(status.time) - Date.now();
    stateLine.take(message);
    setText(byId("model"), status.model?.name ?? "");
    waste.status = status;
    map.takeStatus(status);
    byId("map-others").hidden = message.tenant === null;
    if (first) {
      requests.update();
      tree.take(prefixes);
    }
    showTiles(status, rows);
    activity.update();
    life.update();
    byId("page").setAttribute("aria-busy", "false");
  },
  lost: (error) => stateLine.fails(error),
});

connection.stream("blocks", {
  opened: () => store.clear(),
  event: (name, message) => {
    if (name === "blocks") store.takeBlocks(message);
    else if (name === "tables") store.takeTables(message);
    drawMemory();
  },
});

connection.poll(() => "requests", REQUESTS_MS, {
  answer: (answer) => {
    requests.requests = waste.requests = answer.requests;
    rows.measuredRate = ownRate.take(answer.requests, now());
    if (!stateLine.status) return; // it gives owners their colours
    requests.update();
    drawWaste();
    if (stateLine.tenant !== null) showOwnTiles(answer.requests, prefixes.scopes);
  },
});

const lifePoll = connection.poll(() => life.path, LIFE_MS, {
  answer: (timeline) => life.take(timeline),
  failed: (error) => life.failed(error),
});
addEventListener("hashchange", () => {
  requests.update();
  if (life.path) lifePoll.start();
});

connection.poll(() => "prefix-tree", TREE_MS, {
  answer: (answer) => {
    prefixes = answer;
    if (stateLine.status) tree.take(answer);
  },
});
