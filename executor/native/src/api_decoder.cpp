#include <new>

#include "api.h"
#include "decoder.h"

// The model's structures are copied, what they point at is not. Null where there is no memory.
OCTAVO_API octavo::Decoder* octavo_decoder_new(const octavo::DecoderModel* model, const octavo::KvCache* first_layer,
                                               int64_t layer_stride) {
  return new (std::nothrow) octavo::Decoder(*model, *first_layer, layer_stride);
}

OCTAVO_API void octavo_decoder_free(octavo::Decoder* decoder) { delete decoder; }

// 0 where the step was run, 1 where there is no memory for it.
OCTAVO_API int32_t octavo_decoder_run(octavo::Decoder* decoder, octavo::Crew* crew, const octavo::DecoderStep* step) {
  return decoder->run(*crew, *step) ? 0 : 1;
}

// Nanoseconds of a phase in all steps so far; -1 where there is no such phase.
OCTAVO_API int64_t octavo_decoder_nanoseconds(const octavo::Decoder* decoder, int32_t phase) {
  return phase >= 0 && phase < static_cast<int32_t>(octavo::Phase::kCount) ? decoder->nanoseconds(phase) : -1;
}
