/** How a call fails. */

import * as grpc from "@grpc/grpc-js";
import protobuf from "protobufjs";

// The part of google.rpc.Status and its details that is read here.
const googleRpc = protobuf.Root.fromJSON({
  nested: {
    Status: {
      fields: {
        code: { type: "int32", id: 1 },
        message: { type: "string", id: 2 },
        details: { rule: "repeated", type: "Any", id: 3 },
      },
    },
    Any: { fields: { type_url: { type: "string", id: 1 }, value: { type: "bytes", id: 2 } } },
    ErrorInfo: { fields: { reason: { type: "string", id: 1 } } },
    BadRequest: { fields: { violations: { rule: "repeated", type: "FieldViolation", id: 1 } } },
    FieldViolation: { fields: { field: { type: "string", id: 1 } } },
    RetryInfo: { fields: { delay: { type: "Duration", id: 1 } } },
    Duration: { fields: { seconds: { type: "int64", id: 1 }, nanos: { type: "int32", id: 2 } } },
  },
});

interface Details {
  field: string;
  reason: string;
  retryAfter: number | undefined;
}

// What gRPC itself says of a connection that could not be made, or that broke.
const OF_THE_CONNECTION = new Set([grpc.status.UNAVAILABLE, grpc.status.INTERNAL, grpc.status.CANCELLED]);

/** A call that failed. */
export class OctavoError extends Error {
  override readonly name = "OctavoError";
  /** The gRPC status. */
  readonly status: grpc.status;
  /** The field of the request that is at fault, or "". */
  readonly field: string;
  /** Upper-case constant for programs, or "". */
  readonly reason: string;
  /** Seconds after which another try is worth it. */
  readonly retryAfter: number | undefined;
  /** Whether a server answered. False: it was not reached, or the connection broke. */
  readonly fromServer: boolean;

  constructor(status: grpc.status, message: string, details: Partial<Details> & { fromServer?: boolean } = {}) {
    const field = details.field ?? "";
    const where = field && !message.startsWith(`${field}:`) ? `${field}: ` : "";
    super(`${grpc.status[status]}: ${where}${message}`);
    this.status = status;
    this.field = field;
    this.reason = details.reason ?? "";
    this.retryAfter = details.retryAfter;
    this.fromServer = details.fromServer ?? true;
  }

  /** Reads a failed call, and the `google.rpc.Status` that came with it. */
  static fromRpc(error: grpc.ServiceError): OctavoError {
    const [data] = error.metadata?.get("grpc-status-details-bin") ?? [];
    if (data === undefined) {
      // A server that is there but cannot serve says so in a google.rpc.Status. gRPC's own errors have none.
      return new OctavoError(error.code, error.details, { fromServer: !OF_THE_CONNECTION.has(error.code) });
    }
    const status = decode("Status", Buffer.from(data));
    return new OctavoError(error.code, status["message"] || error.details, detailsOf(status["details"]));
  }
}

function detailsOf(packed: { type_url: string; value: Uint8Array }[]): Details {
  const found: Details = { field: "", reason: "", retryAfter: undefined };
  for (const { type_url, value } of packed) {
    switch (type_url.split("/").at(-1)) {
      case "google.rpc.BadRequest":
        found.field = decode("BadRequest", value)["violations"][0]?.field ?? "";
        break;
      case "google.rpc.ErrorInfo":
        found.reason = decode("ErrorInfo", value)["reason"];
        break;
      case "google.rpc.RetryInfo": {
        const { seconds = 0, nanos = 0 } = decode("RetryInfo", value)["delay"] ?? {};
        found.retryAfter = Number(seconds) + nanos / 1e9;
      }
    }
  }
  return found;
}

function decode(type: string, data: Uint8Array): Record<string, any> {
  const messageType = googleRpc.lookupType(type);
  return messageType.toObject(messageType.decode(data), { longs: Number, defaults: true, arrays: true });
}

/** Whether it is an error of gRPC. */
export function isServiceError(error: unknown): error is grpc.ServiceError {
  return error instanceof Error && "code" in error && "details" in error && typeof error.code === "number";
}
