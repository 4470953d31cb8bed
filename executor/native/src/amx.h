// Tile registers (AMX): eight of 16 rows of 64 bytes, each thread's own.
//
// The instructions are written out, because GCC 12's intrinsics do not say which memory they read: stores to it can be
// dropped or come too late.
#pragma once

#include <cstdint>

#if defined(OCTAVO_EMULATE_AMX)
#include "amx_emulated.h"
#elif defined(__AMX_BF16__)
#define OCTAVO_AMX

namespace octavo::amx {

// All tiles with all of their rows and bytes. To be called before any other of these, by each thread.
inline void configure() {
  struct alignas(64) {
    uint8_t palette, start_row, reserved[14];
    uint16_t row_bytes[16];
    uint8_t rows[16];
  } config = {1, 0, {}, {64, 64, 64, 64, 64, 64, 64, 64}, {16, 16, 16, 16, 16, 16, 16, 16}};
  asm volatile("ldtilecfg %0" : : "m"(config));
}

// The thread has no tiles any more, and they no longer slow down its switches.
inline void release() { asm volatile("tilerelease" : : : "memory"); }

template <int kTile>
void zero() {
  asm volatile("tilezero %%tmm%c0" : : "i"(kTile));
}

// Rows are `stride` bytes apart.
template <int kTile>
void load(const void* memory, int64_t stride) {
  asm volatile("tileloadd (%0,%1,1), %%tmm%c2" : : "r"(memory), "r"(stride), "i"(kTile) : "memory");
}

template <int kTile>
void store(void* memory, int64_t stride) {
  asm volatile("tilestored %%tmm%c2, (%0,%1,1)" : : "r"(memory), "r"(stride), "i"(kTile) : "memory");
}

// sums[m][n] += sum over k of a[m][k] b[k / 2][n][k % 2]: floats and bfloat16, k below 32.
template <int kSums, int kA, int kB>
void multiply_bf16() {
  asm volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" : : "i"(kSums), "i"(kA), "i"(kB));
}

}  // namespace octavo::amx

#endif
