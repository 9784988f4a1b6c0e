// Host products through oneDNN, 2.6 or 3: float, and bf16 where the processor multiplies it faster (the instruction set
// is oneDNN's choice at run time; elsewhere bf16 is widened); double through CBLAS. A primitive, its memory objects and
// its arguments are made once per shape; executing through the C interface with a ready array of arguments allocates
// nothing here.
#include <omp.h>
#include <oneapi/dnnl/dnnl.hpp>

#include <algorithm>
#include <array>
#include <string_view>
#include <vector>

#include "kernels/base/error.hpp"
#include "kernels/base/thread_count.hpp"
#include "kernels/blas/host/blas_cores.hpp"
#include "kernels/blas/host/gemm_host.hpp"
#include "kernels/blas/host/packed_product.hpp"
#include "kernels/blas/instruction_set.hpp"

namespace sestina {
namespace host {
namespace {

using dnnl::memory;

void check(dnnl_status_t status, const char* what, const Product& p) {
  SESTINA_REQUIRE(status == dnnl_success, "oneDNN: {} of a product m={} n={} k={} ended with status {}", what, p.m, p.n,
                  p.k, static_cast<int>(status));
}

// Returns whether oneDNN uses at least that set here. Each set's value has the bits of those that it includes.
bool uses(dnnl::cpu_isa set) {
  const auto bits = static_cast<unsigned>(set);
  return (static_cast<unsigned>(dnnl::get_effective_cpu_isa()) & bits) == bits;
}

VectorLevel vector_level() {
  return uses(dnnl::cpu_isa::avx512_core_amx)    ? VectorLevel::amx
         : uses(dnnl::cpu_isa::avx512_core_bf16) ? VectorLevel::avx512_bf16
         : uses(dnnl::cpu_isa::avx512_core)      ? VectorLevel::avx512
         : uses(dnnl::cpu_isa::avx2)             ? VectorLevel::avx2
                                                 : VectorLevel::any;
}

memory::desc describe(memory::data_type type, Op op, std::int64_t rows, std::int64_t cols, std::int64_t leading) {
  const bool plain = op == Op::none;
  return {{rows, cols}, type, memory::dims{plain ? leading : 1, plain ? 1 : leading}};
}

// A primitive with the arguments that it is executed with.
struct Prepared {
  Product product;
  dnnl::primitive primitive;
  memory a, b, c, scratch, scale;
  std::array<dnnl_exec_arg_t, 5> arguments;
  bool is_packed_gemm = false;  // oneDNN has no better way for it
};

// Returns whether the packed GEMM ("gemm:jit") is the faster of oneDNN's two ways. It beats the batch-reduced one
// ("brg", oneDNN's first choice) where B is too large for the second-level cache: measured with AVX-512, by 3 to 15 %
// from 768 x 768 on; with one side of 256 it loses as much. AMX tiles multiply bf16 faster than the packed GEMM feeds
// them.
bool prefers_packed(const Product& p) {
  constexpr std::int64_t large = 512;
  const bool tiles = p.types != GemmTypes::f32 && uses(dnnl::cpu_isa::avx512_core_amx);
  return p.n >= large && p.k >= large && !tiles;
}

bool is_packed_gemm(const dnnl::matmul::primitive_desc& desc) {
  return std::string_view(desc.impl_info_str()).substr(0, 4) == "gemm";
}

// Moves to the packed GEMM if oneDNN offers it for this product.
void choose_packed(dnnl::matmul::primitive_desc& desc, const dnnl::matmul::primitive_desc& first) {
  while (!is_packed_gemm(desc))
    if (!desc.next_impl()) {
      desc = first;
      return;
    }
}

// Returns the columns of a panel. With a result in bf16 the packed GEMM keeps all of it in fp32 for each thread (262 MB
// for the logits of 1024 tokens on two): wide results are computed in panels, narrow ones at once.
std::int64_t panel_cols(const Product& p) {
  if (p.types != GemmTypes::bf16 || !prefers_packed(p)) return p.n;
  constexpr std::int64_t most = std::int64_t{32} << 20, step = 512;
  const std::int64_t fitting = most / (std::int64_t{sizeof(float)} * omp_get_max_threads() * p.m);
  return std::min(p.n, std::max(fitting / step, std::int64_t{1}) * step);
}

// The interfaces of oneDNN 2 and 3 differ in a descriptor before the primitive's, and in how a product is scaled by a
// number that is known when it runs. A Description outlives the search for another implementation: in oneDNN 2 the
// search reads it again.
#if DNNL_VERSION_MAJOR >= 3
constexpr int scale_argument = DNNL_ARG_ATTR_SCALES | DNNL_ARG_SRC;
void scale_at_run_time(dnnl::primitive_attr& attributes) { attributes.set_scales_mask(DNNL_ARG_SRC, 0); }
struct Description {
  memory::desc a, b, c;
  dnnl::matmul::primitive_desc with(const dnnl::primitive_attr& attributes, const dnnl::engine& engine) const {
    return {engine, a, b, c, attributes};
  }
};
#else
constexpr int scale_argument = DNNL_ARG_ATTR_OUTPUT_SCALES;
void scale_at_run_time(dnnl::primitive_attr& attributes) { attributes.set_output_scales(0, {DNNL_RUNTIME_F32_VAL}); }
struct Description {
  dnnl::matmul::desc product;
  Description(const memory::desc& a, const memory::desc& b, const memory::desc& c) : product(a, b, c) {}
  dnnl::matmul::primitive_desc with(const dnnl::primitive_attr& attributes, const dnnl::engine& engine) const {
    return {product, attributes, engine};
  }
};
#endif

dnnl::matmul::primitive_desc make_matmul(const Product& p, const dnnl::engine& engine) {
  using type = memory::data_type;
  const type in = p.types == GemmTypes::f32 ? type::f32 : type::bf16;
  const type out = p.types == GemmTypes::bf16 ? type::bf16 : type::f32;
  dnnl::primitive_attr attributes;
  attributes.set_scratchpad_mode(dnnl::scratchpad_mode::user);
  if (p.scaled) scale_at_run_time(attributes);
  if (p.beta != 0) {
    dnnl::post_ops sum;
    sum.append_sum(static_cast<float>(p.beta));
    attributes.set_post_ops(sum);
  }
  const Description product{describe(in, p.op_a, p.m, p.k, p.lda), describe(in, p.op_b, p.k, p.n, p.ldb),
                            describe(out, Op::none, p.m, p.n, p.ldc)};
  dnnl::matmul::primitive_desc desc = product.with(attributes, engine);
  if (prefers_packed(p)) choose_packed(desc, product.with(attributes, engine));
  return desc;
}

// The products of oneDNN, each prepared when its shape is first seen.
struct Primitives {
  dnnl::engine engine{dnnl::engine::kind::cpu, 0};
  dnnl::stream stream{engine};
  float alpha = 1;
  std::vector<std::byte> scratchpad;  // shared by all primitives: one runs at a time
  std::vector<std::unique_ptr<Prepared>> prepared;

  Prepared& find(const Product& product) {
    for (auto& candidate : prepared)
      if (candidate->product == product) return *candidate;
    try {
      prepared.push_back(prepare(product));
    } catch (const dnnl::error& error) {
      check(error.status, "set-up", product);
    }
    return *prepared.back();
  }

  std::unique_ptr<Prepared> prepare(const Product& product) {
    const dnnl::matmul::primitive_desc desc = make_matmul(product, engine);
    auto made = std::make_unique<Prepared>();
    made->product = product;
    made->is_packed_gemm = is_packed_gemm(desc);
    made->primitive = dnnl::matmul(desc);
    made->a = memory(desc.src_desc(), engine, DNNL_MEMORY_NONE);
    made->b = memory(desc.weights_desc(), engine, DNNL_MEMORY_NONE);
    made->c = memory(desc.dst_desc(), engine, DNNL_MEMORY_NONE);
    made->scratch = memory(desc.scratchpad_desc(), engine, DNNL_MEMORY_NONE);
    made->scale = memory({{1}, memory::data_type::f32, memory::dims{1}}, engine, &alpha);
    made->arguments = {{{DNNL_ARG_SRC, made->a.get()},
                        {DNNL_ARG_WEIGHTS, made->b.get()},
                        {DNNL_ARG_DST, made->c.get()},
                        {DNNL_ARG_SCRATCHPAD, made->scratch.get()},
                        {scale_argument, made->scale.get()}}};
    scratchpad.resize(std::max(scratchpad.size(), desc.scratchpad_desc().get_size()));
    return made;
  }

  void run(const Product& p, const Operands& x) {
    const std::int64_t width = panel_cols(p);
    if (width == p.n) return run_at_once(p, x);
    constexpr std::int64_t bytes = 2;  // size of a bf16, which alone has panels
    Product panel = p;
    for (std::int64_t col = 0; col < p.n; col += width) {
      panel.n = std::min(width, p.n - col);
      Operands part = x;
      part.b = static_cast<const char*>(x.b) + bytes * (p.op_b == Op::none ? col : col * p.ldb);
      part.c = static_cast<char*>(x.c) + bytes * col;
      run_at_once(panel, part);
    }
  }

  void run_at_once(const Product& p, const Operands& x) {
    Prepared& it = find(p);
    alpha = static_cast<float>(x.alpha);
    check(dnnl_memory_set_data_handle(it.a.get(), const_cast<void*>(x.a)), "A", p);
    check(dnnl_memory_set_data_handle(it.b.get(), const_cast<void*>(x.b)), "B", p);
    check(dnnl_memory_set_data_handle(it.c.get(), x.c), "C", p);
    check(dnnl_memory_set_data_handle(it.scratch.get(), scratchpad.data()), "scratchpad", p);
    const int count = static_cast<int>(it.arguments.size()) - (p.scaled ? 0 : 1);
    check(dnnl_primitive_execute(it.primitive.get(), stream.get(), count, it.arguments.data()), "execution", p);
  }
};

// Returns what the packed products may use, so that they multiply bf16 as such or widen it as bf16_way() says.
VectorLevel packed_level() {
  return bf16_way() == Bf16Way::widened ? std::min(vector_level(), VectorLevel::avx512) : vector_level();
}

}  // namespace

struct Library::State {
  Primitives primitives;
  PackedProducts packed{packed_level()};

  // Returns whether oneDNN has its AMX kernels for other bf16 products, but not for this one. Those of oneDNN 2.6 want
  // C, and A where it is transposed, without gaps between rows; the packed GEMM takes twice their time.
  bool is_slow(const Product& p) {
    return uses(dnnl::cpu_isa::avx512_core_amx) && packed.has_bf16() && primitives.find(p).is_packed_gemm;
  }
};

Library::Library() : state_(std::make_unique<State>()) {}
Library::~Library() = default;
Library::Library(Library&&) noexcept = default;

void Library::run(const Product& p, const Operands& x) {
  if (p.types == GemmTypes::f64) {
    blas_gemm(p, x.alpha, static_cast<const double*>(x.a), static_cast<const double*>(x.b), static_cast<double*>(x.c));
  } else if (p.types != GemmTypes::f32 && (bf16_way() == Bf16Way::widened || state_->is_slow(p))) {
    state_->packed.run(p, x);
  } else {
    state_->primitives.run(p, x);
  }
}

bool Library::run_packed(const Product& p, const Operands& x) {
  if (!reads_bf16(p.types)) return false;
  state_->packed.run(p, x);
  return true;
}

bool is_packed(GemmTypes types, bool fixed) { return reads_bf16(types) && (fixed || bf16_way() == Bf16Way::widened); }

const char* library_instruction_set() {
  if (uses(dnnl::cpu_isa::avx512_core_amx)) return "amx-bf16";
  if (uses(dnnl::cpu_isa::avx512_core_bf16)) return "avx512bf16";
  if (uses(dnnl::cpu_isa::avx512_core)) return "avx512f";
  if (uses(dnnl::cpu_isa::avx2)) return "avx2";
  return uses(dnnl::cpu_isa::sse41) ? "x86-64" : "other";
}

}  // namespace host

Bf16Way bf16_way() {
  using enum dnnl::cpu_isa;
  static const Bf16Way way = host::uses(avx512_core_amx)                                     ? Bf16Way::tiles
                             : host::uses(avx512_core_bf16) && host::has_fast_dot_products() ? Bf16Way::dot_products
                                                                                             : Bf16Way::widened;
  return way;
}

}  // namespace sestina
