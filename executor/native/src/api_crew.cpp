#include "api.h"
#include "team.h"

// A crew of `threads` threads, the caller's included; freed with octavo_crew_free.
OCTAVO_API octavo::Crew* octavo_crew_new(int32_t threads) { return new octavo::Crew(threads); }

OCTAVO_API void octavo_crew_free(octavo::Crew* crew) { delete crew; }
