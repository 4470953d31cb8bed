// Which levels this machine runs. Compiled for the plainest machine, as the only part of the package that every one may
// load.
#include "api.h"

#if defined(__x86_64__)
#include <cpuid.h>
#endif
#if defined(__linux__)
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace {

#if defined(__x86_64__)
bool has_avx2() {
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("bmi2");
}

bool has_avx512() {
  return has_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
         __builtin_cpu_supports("avx512vnni");
}

// Tiles need, beside the processor, the kernel's permission, which holds for all threads that this one starts later.
bool has_amx() {
  if (!has_avx512()) return false;
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
  if (!__get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx)) return false;
  const bool tiles = (edx >> 24) & 1, bf16 = (edx >> 22) & 1, int8 = (edx >> 25) & 1;
  if (!tiles || !bf16 || !int8) return false;
#if defined(__linux__)
  constexpr long kRequestPermission = 0x1023, kTileData = 18;  // arch_prctl(ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA)
  return syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
#else
  return false;
#endif
}
#endif

}  // namespace

// Whether code of a level of `executor.native.levels` runs here.
OCTAVO_API int octavo_runs_here(const char* level) {
  const auto is = [level](const char* name) {
    const char* a = level;
    for (; *a && *a == *name; ++a, ++name) {
    }
    return *a == *name;
  };
  if (is("plain")) return 1;
#if defined(__x86_64__)
  __builtin_cpu_init();
  if (is("avx2")) return has_avx2();
  if (is("avx512")) return has_avx512();
  if (is("amx")) return has_amx();
#endif
  return 0;
}
