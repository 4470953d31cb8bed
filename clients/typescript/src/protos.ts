/** The contracts, read from the .proto files that lie beside the client. */

import { fileURLToPath } from "node:url";
import * as grpc from "@grpc/grpc-js";
import { loadSync } from "@grpc/proto-loader";
import type { ProtoGrpcType } from "./generated/inference.js";
import type { GenerationServiceClient } from "./generated/octavo/v1/GenerationService.js";

// `npm run types` is told the same. Fields keep the names that they have in the contracts, in errors and in the other clients.
const definition = loadSync("octavo/v1/inference.proto", {
  includeDirs: [fileURLToPath(new URL("../../proto/", import.meta.url))],
  keepCase: true,
  longs: String,
  enums: String,
  defaults: true,
  oneofs: true,
});

const loaded = grpc.loadPackageDefinition(definition) as unknown as ProtoGrpcType;

/** A client of the public service on one channel. */
export type Stub = GenerationServiceClient;

export function openStub(address: string, credentials: grpc.ChannelCredentials, options: grpc.ChannelOptions): Stub {
  return new loaded.octavo.v1.GenerationService(address, credentials, options);
}

/** Names of a message's fields. */
export function fieldsOf(message: "SamplingParams" | "Guide"): ReadonlySet<string> {
  const { type } = loaded.octavo.v1[message] as unknown as { type: { field: { name: string }[] } };
  return new Set(type.field.map((field) => field.name));
}
