// What every exported function looks like: plain C, raw pointers, plain structs.
#pragma once

#if defined(_WIN32)
#define OCTAVO_API extern "C" __declspec(dllexport)
#else
#define OCTAVO_API extern "C" __attribute__((visibility("default")))
#endif
