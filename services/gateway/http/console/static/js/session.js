// The viewer's key: asked for when the gateway wants one, kept until the tab is closed, never put into an address.

import { byId, setText } from "./dom.js";

const STORED = "octavo-key";

export class Session {
  constructor() {
    this.key = sessionStorage.getItem(STORED) ?? "";
    /** @type {Promise<void> | null} */
    this.asking = null;
    this.dialog = byId("key-dialog");
    this.input = byId("key-input");
    this.error = byId("key-error");
    /** Is told when another key is used. */
    this.onchange = () => {};
    byId("key-form").addEventListener("submit", (event) => {
      event.preventDefault();
      if (this.input.value.trim()) this.dialog.close("key");
    });
    byId("key-cancel").addEventListener("click", () => this.dialog.close(""));
    byId("key-button").addEventListener("click", () => this.ask("").catch(() => {}));
  }

  /** @returns {Record<string, string>} */
  get headers() {
    return this.key ? { authorization: `Bearer ${this.key}` } : {};
  }

  /**
   * The gateway refused a key. Resolves when there is another one to try.
   * @param {string} refused
   */
  async refused(refused) {
    if (refused !== this.key) return; // another one has been given meanwhile
    await this.ask(refused ? "The gateway does not know this key." : "");
  }

  /**
   * One dialog at a time, whoever asks.
   * @param {string} problem
   */
  ask(problem) {
    this.asking ??= this.show(problem).finally(() => (this.asking = null));
    return this.asking;
  }

  show(problem) {
    setText(this.error, problem);
    this.input.value = "";
    this.dialog.returnValue = "";
    this.dialog.showModal();
    return new Promise((resolve) => {
      const closed = () => {
        const given = this.dialog.returnValue === "key" ? this.input.value.trim() : null;
        this.input.value = "";
        if (given !== null) this.use(given);
        resolve(undefined);
      };
      this.dialog.addEventListener("close", closed, { once: true });
    });
  }

  use(key) {
    this.key = key;
    if (key) sessionStorage.setItem(STORED, key);
    else sessionStorage.removeItem(STORED);
    this.onchange();
  }
}
