#include <gtest/gtest.h>
#include <oneapi/dnnl/dnnl.hpp>

#include "regression/unit/allocation_counter.hpp"

namespace sestina {
namespace {

TEST(AllocationCounter, LeavesOutOtherLibraries) {
  dnnl_engine_t engine = nullptr;
  AllocationCounter counter;
  ASSERT_EQ(dnnl_engine_create(&engine, dnnl_cpu, 0), dnnl_success);  // allocates inside libdnnl
  EXPECT_EQ(counter.heap(), 0) << counter.places();
  dnnl_engine_destroy(engine);
}

}  // namespace
}  // namespace sestina
