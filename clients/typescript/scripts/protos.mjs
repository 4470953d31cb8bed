// Copies the contracts that the client reads beside it, so that the package holds them.
import { cpSync } from "node:fs";

const contracts = new URL("../../../proto/octavo/v1/", import.meta.url);
for (const name of ["common.proto", "inference.proto"]) {
  cpSync(new URL(name, contracts), new URL(`../proto/octavo/v1/${name}`, import.meta.url));
}
