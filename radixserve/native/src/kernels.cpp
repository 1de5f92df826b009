// All kernels for one instruction set; compiled once for each, with its flags and RS_ISA_V4, RS_ISA_V3 or neither
// defined.
#include "kernels.h"

#if defined(RS_ISA_V4) && !(defined(__AVX512BF16__) && defined(__AVX512VNNI__))
#error "RS_ISA_V4 needs the AVX-512 BF16 and VNNI flags"
#endif

#include "attention.hpp"
#include "embedding.hpp"
#include "linear_dense.hpp"
#include "linear_quant.hpp"
#include "linear_gated.hpp"
#include "linear_top_k.hpp"
#include "norm.hpp"
#include "rope_append.hpp"
#include "silu_mul.hpp"
#include "top_k.hpp"

namespace radixserve {
namespace RS_NAMESPACE {

#if defined(RS_ISA_V4)
constexpr const char* kName = "v4";
#elif defined(RS_ISA_V3)
constexpr const char* kName = "v3";
#else
constexpr const char* kName = "generic";
#endif

constexpr Kernels kKernels = {kName,       embedding, norm,     linear_dense, linear_quant, linear_gated,
                              rope_append, attention, silu_mul, top_k,        linear_top_k};

}  // namespace RS_NAMESPACE

#if defined(RS_ISA_V4)
const Kernels* kernels_v4() { return &RS_NAMESPACE::kKernels; }
#elif defined(RS_ISA_V3)
const Kernels* kernels_v3() { return &RS_NAMESPACE::kKernels; }
#else
const Kernels* kernels_generic() { return &RS_NAMESPACE::kKernels; }
#endif

}  // namespace radixserve
