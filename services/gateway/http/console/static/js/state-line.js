// Says how the connection and the stack are, and whose view this is.

import { byId, setText } from "./dom.js";

export class StateLine {
  /** @param {import("./session.js").Session} session */
  constructor(session) {
    this.session = session;
    this.lost = null;
    this.status = null;
    this.tenant = undefined;
    this.show();
    document.addEventListener("visibilitychange", () => this.show());
  }

  take(message) {
    this.lost = null;
    this.status = message.status;
    this.tenant = message.tenant;
    this.show();
  }

  /** @param {any} error */
  fails(error) {
    this.lost = error;
    this.show();
  }

  show() {
    const [state, text] = this.words();
    const line = byId("connection");
    line.dataset.state = state;
    setText(byId("connection-text"), text);
    const banner = byId("banner");
    const problem = this.problem();
    banner.hidden = !problem;
    setText(banner, problem);
    setText(byId("viewer"), this.viewer());
    setText(byId("key-button"), this.session.key ? "Change key" : "Enter key");
    byId("key-button").hidden = this.tenant === null && !this.session.key; // all is seen without
    document.body.dataset.stale = String(this.lost !== null && this.status !== null);
  }

  words() {
    if (document.hidden) return ["paused", "Paused"];
    if (this.lost) return ["lost", this.lost.status === 401 ? "Key needed" : "Not connected"];
    if (!this.status) return ["connecting", "Connecting"];
    if (!this.status.ready) return ["degraded", "No executor"];
    return this.status.stateAvailable ? ["live", "Live"] : ["degraded", "Degraded"];
  }

  problem() {
    if (this.lost) {
      if (this.lost.status === 401) return "The gateway asks for a key: a tenant's, or the operator's.";
      const why = this.lost.status ? ` It says: ${this.lost.message}` : "";
      return `Not connected to the gateway. Trying again by itself.${why}${this.status ? " What you see is how it was." : ""}`;
    }
    if (!this.status) return "";
    if (!this.status.ready) return "No executor is connected: requests wait until one is.";
    return this.status.stateAvailable ? "" : "The state store is away: requests are served, but their streams would not survive this gateway.";
  }

  viewer() {
    if (this.tenant === undefined) return "";
    if (this.tenant !== null) return `View of tenant ${this.tenant}`;
    return this.session.key ? "Operator’s view: all tenants" : "Open gateway: everybody sees all";
  }
}
