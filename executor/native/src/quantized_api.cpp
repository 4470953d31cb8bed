#include "api.h"
#include "quantized.h"

using octavo::QuantizedMatrix;
using octavo::WeightKind;

// 0 where a scale or a minimum is beyond float16.
OCTAVO_API int32_t octavo_quantize(int32_t kind, int64_t outputs, int64_t inputs, const float* weights, uint8_t* codes,
                                   uint16_t* scales, uint16_t* minimums) {
  const QuantizedMatrix matrix{codes, scales, minimums};
  return octavo::quantize(static_cast<WeightKind>(kind), outputs, inputs, weights, matrix);
}

OCTAVO_API void octavo_pack_codes(int32_t kind, int64_t outputs, int64_t inputs, uint8_t* codes, uint16_t* scales,
                                  uint16_t* minimums, void* packed) {
  octavo::pack_codes(static_cast<WeightKind>(kind), outputs, inputs, {codes, scales, minimums}, packed);
}
