// The tile registers of amx.h in memory, for tests on machines without them. The same results, bit by bit, where no
// number is denormal: the order of additions is that of Intel's description of TDPBF16PS.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

#include "vec.h"

#define OCTAVO_AMX

namespace octavo::amx {

struct Tiles {
  bool configured;
  uint8_t bytes[8][16][64];
};

inline Tiles& tiles() {
  static thread_local Tiles tiles;
  return tiles;
}

inline void configure() { tiles().configured = true; }

inline void release() { tiles().configured = false; }

// What an unconfigured tile does is what it should be found out by: the processor stops the process, this gives NaN.
template <int kTile>
void zero() {
  std::memset(tiles().bytes[kTile], tiles().configured ? 0 : 0xff, sizeof(Tiles::bytes[0]));
}

template <int kTile>
void load(const void* memory, int64_t stride) {
  for (int row = 0; row < 16; ++row)
    std::memcpy(tiles().bytes[kTile][row], static_cast<const uint8_t*>(memory) + row * stride, 64);
}

template <int kTile>
void store(void* memory, int64_t stride) {
  for (int row = 0; row < 16; ++row)
    std::memcpy(static_cast<uint8_t*>(memory) + row * stride, tiles().bytes[kTile][row], 64);
}

template <int kSums, int kA, int kB>
void multiply_bf16() {
  uint16_t a[16][32], b[16][16][2];
  float sums[16][16];
  std::memcpy(a, tiles().bytes[kA], sizeof a);
  std::memcpy(b, tiles().bytes[kB], sizeof b);
  std::memcpy(sums, tiles().bytes[kSums], sizeof sums);
  for (int m = 0; m < 16; ++m)
    for (int n = 0; n < 16; ++n) {
      float even = 0, odd = 0;
      for (int k = 0; k < 16; ++k) {
        even = std::fma(bf16_to_float(a[m][2 * k]), bf16_to_float(b[k][n][0]), even);
        odd = std::fma(bf16_to_float(a[m][2 * k + 1]), bf16_to_float(b[k][n][1]), odd);
      }
      sums[m][n] += even + odd;
    }
  std::memcpy(tiles().bytes[kSums], sums, sizeof sums);
}

}  // namespace octavo::amx
