/** Streams an answer: npm run build && node dist/examples/stream.js "Once upon a time" [ADDRESS ...] */

import { OctavoClient, OctavoError } from "../src/index.js";

const [prompt = "Once upon a time", ...addresses] = process.argv.slice(2);
const client = new OctavoClient(addresses.length ? addresses : undefined);
const leaving = new AbortController();
process.once("SIGINT", () => leaving.abort());
try {
  for await (const response of client.generate({ prompt, max_tokens: 100, signal: leaving.signal })) {
    process.stdout.write(response.text);
    if (response.usage) {
      const { completion_tokens, cached_tokens } = response.usage;
      process.stdout.write(`\n(${completion_tokens} tokens; ${cached_tokens} of the prompt's came from the cache)\n`);
    }
  }
} catch (error) {
  if (!(error instanceof OctavoError) && !leaving.signal.aborted) {
    throw error;
  }
  process.stderr.write(`\n${error instanceof OctavoError ? error.message : "left"}\n`);
  process.exitCode = 1;
} finally {
  client.close();
}
