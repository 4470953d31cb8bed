// The way to the gateway: streams that come back by themselves, and questions asked again and again.
// While the tab is hidden nothing is asked and nothing is kept open.

import { readEvents } from "./events.js";

const FIRST_RETRY_MS = 500;
const LONGEST_RETRY_MS = 5000;
/** A stream says something at least every 5 s. */
const SILENCE_MS = 15_000;

export class Refused extends Error {
  /** @param {number} status @param {string} message */
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

export class Connection {
  /** @param {import("./session.js").Session} session */
  constructor(session) {
    this.session = session;
    /** @type {Set<Repeated>} */
    this.repeated = new Set();
    document.addEventListener("visibilitychange", () => (document.hidden ? this.pause() : this.restart()));
  }

  /**
   * @param {string} path below console/api/
   * @param {AbortSignal} signal
   * @returns {Promise<Response>} a good one
   */
  async ask(path, signal) {
    const key = this.session.key;
    const response = await fetch(`api/${path}`, { headers: this.session.headers, cache: "no-store", signal });
    if (response.ok) return response;
    const body = await response.json().catch(() => ({}));
    if (response.status === 401) await this.session.refused(key);
    throw new Refused(response.status, body?.error?.message ?? `status ${response.status}`);
  }

  /**
   * A stream of events, opened again whenever it ends.
   * @param {string} path
   * @param {{opened?: () => void, event: (name: string, data: any) => void, lost?: (error: Error) => void}} listener
   */
  stream(path, listener) {
    return this.add(async (signal, alive) => {
      const response = await this.ask(path, signal);
      listener.opened?.();
      for await (const { name, data } of readEvents(response.body)) {
        alive();
        if (name) listener.event(name, JSON.parse(data));
      }
      throw new Error("the stream ended");
    }, (error) => listener.lost?.(error));
  }

  /**
   * A question, asked again at an interval.
   * @param {() => string | null} path null: not now
   * @param {number} interval ms
   * @param {{answer: (data: any) => void, failed?: (error: Error) => void}} listener
   */
  poll(path, interval, listener) {
    return this.add(async (signal, alive) => {
      while (!signal.aborted) {
        const asked = path();
        if (asked !== null) {
          const response = await this.ask(asked, signal);
          const data = await response.json();
          if (signal.aborted) return;
          if (path() === asked) listener.answer(data);
        }
        alive();
        await pause(interval, signal);
      }
    }, (error) => listener.failed?.(error));
  }

  add(work, failed) {
    const repeated = new Repeated(work, failed);
    this.repeated.add(repeated);
    if (!document.hidden) repeated.start();
    return repeated;
  }

  pause() {
    for (const each of this.repeated) each.stop();
  }

  restart() {
    if (document.hidden) return;
    for (const each of this.repeated) each.start();
  }
}

/** Work that is done again when it fails, later each time. */
class Repeated {
  constructor(work, failed) {
    this.work = work;
    this.failed = failed;
    this.control = new AbortController();
  }

  /** Starts anew, at once. */
  start() {
    this.stop();
    this.control = new AbortController();
    this.run(this.control);
  }

  stop() {
    this.control.abort();
  }

  async run(control) {
    let wait = FIRST_RETRY_MS;
    while (!control.signal.aborted) {
      const attempt = new AbortController();
      const stop = () => attempt.abort();
      control.signal.addEventListener("abort", stop);
      let timer = setTimeout(stop, SILENCE_MS);
      const alive = () => {
        wait = FIRST_RETRY_MS;
        clearTimeout(timer);
        timer = setTimeout(stop, SILENCE_MS);
      };
      try {
        await this.work(attempt.signal, alive);
      } catch (error) {
        if (!control.signal.aborted) this.failed(error);
      } finally {
        clearTimeout(timer);
        attempt.abort();
        control.signal.removeEventListener("abort", stop);
      }
      await pause(wait, control.signal);
      wait = Math.min(2 * wait, LONGEST_RETRY_MS);
    }
  }
}

/** @param {number} ms @param {AbortSignal} signal ends it early */
function pause(ms, signal) {
  return new Promise((resolve) => {
    if (signal.aborted) return resolve(undefined);
    const end = () => {
      clearTimeout(timer);
      signal.removeEventListener("abort", end);
      resolve(undefined);
    };
    const timer = setTimeout(end, ms);
    signal.addEventListener("abort", end);
  });
}
